"""Means and covariances of a clean sample under Gaussian evidence, in unit coordinates."""
