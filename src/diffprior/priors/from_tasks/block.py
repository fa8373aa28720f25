"""The contract of a block of tasks: all that learning a prior may ask of what they have shown."""

import abc

import numpy as np
from jaxtyping import Float

from .components import Components, Conditioned, Sums


class AbstractBlock(abc.ABC):
    """Evidence of some tasks; picklable, and what it returns depends on nothing but itself."""

    @property
    @abc.abstractmethod
    def num_tasks(self) -> int:
        """Number of tasks n."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """Number of parameters d."""

    @property
    @abc.abstractmethod
    def task_rows(self) -> Float[np.ndarray, " n"]:
        """Rows of every task, or their summed weights."""

    @property
    @abc.abstractmethod
    def num_rows(self) -> float:
        """Rows of all tasks, or their summed weights."""

    @property
    @abc.abstractmethod
    def exact(self) -> bool:
        """Whether conditioning is exact, as for linear rewards."""

    @abc.abstractmethod
    def corrected(self, num_draws: int) -> "AbstractBlock":
        """The same evidence, with so many points a task to correct what is not exact."""

    @abc.abstractmethod
    def pooled(self) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, " d"], float]:
        """Precision (lower triangle), shift and sum of squares of all rows as one task."""

    @abc.abstractmethod
    def condition(self, components: Components) -> Conditioned:
        """Every component given each task, in units of the component, and log p(h) under it."""

    @abc.abstractmethod
    def expect(self, components: Components, round_: int = 0) -> Sums:
        """One E-step: expected memberships and moments, summed over the tasks."""

    @abc.abstractmethod
    def draw(self, components: Components, *numbers: int) -> Float[np.ndarray, "n d"]:
        """One draw of theta given each task, whose randomness its label and `numbers` decide."""

    @abc.abstractmethod
    def mixed_log_evidence(self, components: Components) -> Float[np.ndarray, " n"]:
        """log p(h) of every task under the mixture."""

    @abc.abstractmethod
    def kernel_log_evidence(
        self, atoms: Float[np.ndarray, "m d"], cov: Float[np.ndarray, "d d"]
    ) -> Float[np.ndarray, "n m"]:
        """log p(h) of every task under N(atom, cov), for every atom."""
