"""Priors of the parameters of a task: closed forms and learned ones."""
