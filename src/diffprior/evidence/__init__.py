"""What a task has shown so far: linear statistics, or rows of a generalized linear model."""
