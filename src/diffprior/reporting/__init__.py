"""Tables, figures and HTML pages: one look for everything that people read."""
