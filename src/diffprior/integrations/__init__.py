"""Bandits inside other libraries: `pip install 'diffprior[integrations]'` brings those."""
