"""Bandit problems to evaluate agents on."""
