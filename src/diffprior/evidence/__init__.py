"""Evidence of a task: linear statistics, or rows of a generalized linear model."""
