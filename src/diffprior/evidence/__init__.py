"""What a task has shown so far: linear statistics, or rows of a generalised linear model."""
