"""Priors from logs: a ladder of families, judged on tasks held out, and a report of it."""
