"""The paper's experiments, one module each; `python -m experiments.NAME --help`."""
