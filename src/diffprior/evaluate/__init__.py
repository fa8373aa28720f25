"""How far a sampler is from the truth: distances, coverage, ranks."""
