"""What past tasks say about the parameters: closed-form priors and learned ones."""
