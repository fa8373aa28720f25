"""What decisions, draws and priors cost and how good they are, by section."""
