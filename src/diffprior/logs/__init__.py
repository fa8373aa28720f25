"""Rows of past tasks: tables in, checked, grouped by task, summed up, split by task."""
