"""Rows of past tasks: read from tables, checked, grouped by task, summed up, sharded."""
