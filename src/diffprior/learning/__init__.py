"""Priors from logs: families of increasing richness, scored on held-out tasks, and a report."""
