"""Priors given what is known of a task: p(theta given z), where theta = r + B'(z - center)."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from ..checks import describe, on_device, real_array
from ..denoisers.base import Tree, for_task
from ..fitting.samples import checked_samples
from ..gaussian import Gaussian
from ..linalg import AnyArray
from .base import AbstractPrior


class ConditionalPrior(AbstractPrior):
    """A prior of residuals, moved to what a task's attributes lead one to expect.

    `given(attributes)` is an ordinary prior. As a prior itself, this is that of the average task.
    Where the residuals' denoiser takes attributes too, their shape depends on them.

    Args:
        residual: The prior of the average task.
        coefficients: Change of each parameter with each attribute (a, d).
        center: Attributes of the average task (a,).
        scale: Standard deviations of the attributes (a,), for a denoiser that takes them.

    Raises:
        ValueError: Shapes disagree, or `residual` is no prior.
    """

    max_bytes: ClassVar[int] = 2**30

    residual: AbstractPrior
    coefficients: Float[Array, "a d"]
    center: Float[Array, " a"]
    scale: Float[Array, " a"] | None = None

    def __init__(
        self,
        residual: object,
        coefficients: ArrayLike,
        center: ArrayLike,
        scale: ArrayLike | None = None,
    ) -> None:
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
        self.scale = None
        if takes_attributes(residual):
            given = np.ones(count) if scale is None else scale
            self.scale = real_array("scale", given, count, "one number for each attribute")

    @staticmethod
    def fit(
        samples: ArrayLike,
        attributes: ArrayLike,
        fit: Callable[[np.ndarray, np.ndarray], AbstractPrior],
        seed: int | None = None,
    ) -> "ConditionalPrior":
        """Learn what attributes say by a ridge regression, and the rest by `fit`.

        Args:
            samples: Parameters of past tasks (n, d).
            attributes: What is known of each (n, a); numbers, and indicators for categories.
            fit: How to learn a prior from residuals (n, d) and standardized attributes (n, a).
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
        residual = fit(array - found.offsets(z), found.standardized(z))
        return ConditionalPrior(residual, found.coefficients, found.center, found.scale)

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
        return self.conditions(attributes)[:, : self.dim]

    def conditions(self, attributes: ArrayLike) -> Float[np.ndarray, "n c"]:
        """Offsets of tasks, and the standardized attributes if the residuals' denoiser takes them.

        Args:
            attributes: As of `offsets`.

        Returns:
            One row per task (n, d) or (n, d + a): what `conditioned` takes.
        """
        z = np.asarray(attributes, np.float64)
        if z.ndim != 2 or z.shape[1] != self.num_attributes:
            raise ValueError(
                f"`attributes`: expected {self.num_attributes} numbers for each task, got shape "
                f"{np.shape(attributes)}; NaN where one is not known"
            )
        away = np.where(np.isnan(z), 0.0, z - np.asarray(self.center))
        offsets = away @ np.asarray(self.coefficients)
        if self.scale is None:
            return np.asarray(offsets)
        return np.concatenate([offsets, away / np.asarray(self.scale)], axis=1)

    @property
    def average(self) -> Float[np.ndarray, " c"]:
        """The condition of the average task."""
        return self.conditions(np.asarray(self.center)[None])[0]

    def given(self, attributes: ArrayLike | None) -> AbstractPrior:
        """The prior of a task with these attributes.

        Args:
            attributes: Numbers (a,), NaN where one is not known; None for the average task.

        Returns:
            A prior of the kind of `residual`, which every sampler takes.

        Raises:
            ValueError: Another number of attributes.
        """
        condition = self.average
        if attributes is not None:
            condition = self.conditions(np.atleast_2d(np.asarray(attributes)))[0]
        residual, offset = conditioned(self.residual, on_device(condition), self.dim)
        return residual if attributes is None else residual.moved(offset)

    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
        return self.residual.sample(key, num_samples)

    def denoise(self, precision: ArrayLike, shift: ArrayLike) -> Gaussian:
        return self.residual.denoise(precision, shift)

    def moments(self) -> Gaussian:
        return self.residual.moments()


def takes_attributes(prior: object) -> bool:
    """Whether the shape of a prior of residuals depends on attributes."""
    return bool(getattr(getattr(prior, "denoiser", None), "takes_attributes", False))


def conditioned(
    tree: Tree, condition: Float[AnyArray, " c"], dim: int
) -> tuple[Tree, Float[AnyArray, " d"]]:
    """A prior of residuals, or what draws from one, for a task of this condition; its offset."""
    return for_task(tree, condition[dim:]), condition[:dim]


def of_average_task(prior: AbstractPrior) -> AbstractPrior:
    """The prior of residuals, if it is a prior given attributes."""
    return prior.residual if isinstance(prior, ConditionalPrior) else prior
