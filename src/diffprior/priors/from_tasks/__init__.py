"""Priors by maximum marginal likelihood, from what tasks have shown instead of their parameters."""
