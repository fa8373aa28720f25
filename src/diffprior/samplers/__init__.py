"""Draws from (an approximation of) p(theta | h)."""
