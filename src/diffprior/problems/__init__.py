"""Bandit problems: what an agent is tried on."""
