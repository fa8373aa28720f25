"""Decisions from draws: agents, their simulation, and the bandit that one puts into a product."""
