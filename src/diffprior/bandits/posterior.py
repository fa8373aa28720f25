"""What a bandit believes about the parameters, as NumPy arrays."""

import dataclasses

import numpy as np
from jaxtyping import Float


@dataclasses.dataclass(frozen=True)
class Posterior:
    """Draws from a bandit's posterior, and what they say.

    Attributes:
        draws: Parameters, one draw a row; shape (n, d).
    """

    draws: Float[np.ndarray, "n d"]

    @property
    def mean(self) -> Float[np.ndarray, " d"]:
        """Mean of the draws; shape (d,)."""
        return self.draws.mean(axis=0)

    @property
    def cov(self) -> Float[np.ndarray, "d d"]:
        """Covariance of the draws, divided by n - 1; shape (d, d)."""
        return np.atleast_2d(np.cov(self.draws, rowvar=False))

    def intervals(self, level: float = 0.9) -> Float[np.ndarray, "d 2"]:
        """Lowest and highest value of each parameter between its central quantiles.

        Args:
            level: Posterior probability that an interval holds its parameter; between 0 and 1.

        Returns:
            Array (d, 2).

        Raises:
            ValueError: `level` is not between 0 and 1.
        """
        if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
            raise ValueError(f"`level`: expected a number between 0 and 1, got {level!r}; try 0.9")
        tail = 0.5 * (1.0 - level)
        return np.quantile(self.draws, [tail, 1.0 - tail], axis=0).T

    def __repr__(self) -> str:
        """Mean and standard deviation of each parameter."""
        rows = zip(self.mean, np.sqrt(np.diagonal(self.cov)), strict=True)
        listed = ", ".join(f"{mean:.3g} +- {std:.2g}" for mean, std in rows)
        return f"Posterior({len(self.draws)} draws: {listed})"
