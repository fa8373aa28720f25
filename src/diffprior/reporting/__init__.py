"""What experiments and benchmarks share: kept results, tables, figures and HTML pages."""
