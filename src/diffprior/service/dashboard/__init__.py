"""Dashboard of the service: one page per model and one per task, rendered on the server."""
