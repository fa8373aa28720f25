"""Decisions over HTTP for many tasks, with a log that nothing acknowledged is missing from."""
