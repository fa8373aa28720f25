"""Measurements of speed and quality, one module each; `python -m benchmarks.NAME --help`."""
