"""Priors given what is known of a task: p(theta given z), where theta = r + B'(z - center)."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from ..checks import describe, real_array
from ..fitting.samples import checked_samples
from ..gaussian import Gaussian
from .base import AbstractPrior


class ConditionalPrior(AbstractPrior):
    """A prior of residuals, moved to what a task's attributes lead one to expect.

    `given(attributes)` is an ordinary prior. As a prior itself, this is that of the average task.

    Args:
        residual: The prior of the average task.
        coefficients: Change of each parameter with each attribute (a, d).
        center: Attributes of the average task (a,).

    Raises:
        ValueError: Shapes disagree, or `residual` is no prior.
    """

    max_bytes: ClassVar[int] = 2**30

    residual: AbstractPrior
    coefficients: Float[Array, "a d"]
    center: Float[Array, " a"]

    def __init__(self, residual: object, coefficients: ArrayLike, center: ArrayLike) -> None:
        if not isinstance(residual, AbstractPrior):
            raise ValueError(
                f"`residual`: expected a prior, got {type(residual).__name__}; fit one to what "
                "attributes leave of the parameters"
            )
        self.residual = residual
        shape = ("a", self.residual.dim)
        fix = "one row for each attribute, one column for each parameter"
        self.coefficients = real_array("coefficients", coefficients, shape, fix)
        count = (self.coefficients.shape[0],)
        self.center = real_array("center", center, count, "one number for each attribute")

    @staticmethod
    def fit(
        samples: ArrayLike,
        attributes: ArrayLike,
        fit: Callable[[np.ndarray], AbstractPrior],
        seed: int | None = None,
    ) -> "ConditionalPrior":
        """Learn what attributes say by a ridge regression, and the rest by `fit`.

        Args:
            samples: Parameters of past tasks (n, d).
            attributes: What is known of each (n, a); numbers, and indicators for categories.
            fit: How to learn a prior from residuals (n, d).
            seed: Of a search for the shape of residuals, under which coefficients are estimated
                again; None if residuals are Gaussian.

        Returns:
            The prior.

        Raises:
            ValueError: Shapes disagree, or as `fit` does.
        """
        from ..fitting.attributes import checked_attributes, regress_samples  # slow to import

        array = checked_samples(samples, at_least=2)
        z = checked_attributes(attributes, len(array))
        found = regress_samples(array, z, seed)
        residual = fit(array - found.offsets(z))
        return ConditionalPrior(residual, found.coefficients, found.center)

    @property
    def dim(self) -> int:
        return self.residual.dim

    @property
    def num_attributes(self) -> int:
        """Number of attributes a."""
        return self.center.shape[0]

    def __repr__(self) -> str:
        return describe(self, self.residual, num_attributes=self.num_attributes)

    def offsets(self, attributes: ArrayLike) -> Float[np.ndarray, "n d"]:
        """Expected parameters of tasks, less those of the average task.

        Args:
            attributes: One row per task (n, a); NaN where an attribute is not known.

        Returns:
            One row per task (n, d).
        """
        z = np.asarray(attributes, np.float64)
        if z.ndim != 2 or z.shape[1] != self.num_attributes:
            raise ValueError(
                f"`attributes`: expected {self.num_attributes} numbers for each task, got shape "
                f"{np.shape(attributes)}; NaN where one is not known"
            )
        z = np.where(np.isnan(z), np.asarray(self.center), z)
        center, coefficients = np.asarray(self.center), np.asarray(self.coefficients)
        return np.asarray((z - center) @ coefficients)

    def given(self, attributes: ArrayLike | None) -> AbstractPrior:
        """The prior of a task with these attributes.

        Args:
            attributes: Numbers (a,), NaN where one is not known; None for the average task.

        Returns:
            A prior of the kind of `residual`, which every sampler takes.

        Raises:
            ValueError: Another number of attributes.
        """
        if attributes is None:
            return self.residual
        return self.residual.moved(self.offsets(np.atleast_2d(np.asarray(attributes)))[0])

    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
        return self.residual.sample(key, num_samples)

    def denoise(self, precision: ArrayLike, shift: ArrayLike) -> Gaussian:
        return self.residual.denoise(precision, shift)

    def moments(self) -> Gaussian:
        return self.residual.moments()


def of_average_task(prior: AbstractPrior) -> AbstractPrior:
    """The prior of residuals, if it is a prior given attributes."""
    return prior.residual if isinstance(prior, ConditionalPrior) else prior
