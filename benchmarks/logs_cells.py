"""Cells of the benchmark of priors from logs: what to run, what to reach, and made-up tasks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from diffprior.logs.logs import Logs

Law = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Cell:
    """One case at one data seed: what to run, and the figure to reach."""

    kind: str
    name: str
    num_tasks: int
    mean_rows: float
    target: float
    seed: int

    @property
    def label(self) -> str:
        """As the table says it."""
        return f"{self.kind} {self.name} {self.num_tasks} x {self.mean_rows:g} seed {self.seed}"


@dataclass(frozen=True)
class Figure:
    """What a cell came to."""

    cell: Cell
    value: float
    notes: dict[str, Any]

    @property
    def reached(self) -> bool:
        """Whether the figure is at most its target."""
        return self.value <= self.cell.target

    def __str__(self) -> str:
        """The figure beside its target."""
        mark = "ok" if self.reached else "MISS"
        notes = " ".join(f"{name}={value}" for name, value in self.notes.items())
        return f"{self.cell.label}: {self.value:.4f} (target {self.cell.target:g}) {mark} {notes}"


def rows_of(
    rng: np.random.Generator, thetas: np.ndarray, mean_rows: float, logistic: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Geometric numbers of rows, features uniform in the unit ball, noise 1 or binary rewards."""
    n, d = thetas.shape
    tasks = np.repeat(np.arange(n), rng.geometric(1 / mean_rows, n))
    x = unit_ball(rng, len(tasks), d)
    eta = np.sum(x * thetas[tasks], axis=1)
    if logistic:
        return tasks, x, (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)
    return tasks, x, eta + rng.standard_normal(len(eta))


def unit_ball(rng: np.random.Generator, count: int, dim: int) -> np.ndarray:
    """Points uniform in the unit ball."""
    x = rng.standard_normal((count, dim))
    return x * rng.random((count, 1)) ** (1 / dim) / np.linalg.norm(x, axis=1, keepdims=True)


def law_of(name: str) -> Law:
    """Parameters by the name of their law."""
    if name == "gauss":
        return lambda rng, n: rng.multivariate_normal([0, 0], [[1, 0.5], [0.5, 1]], n)
    if name == "blobs":
        return lambda rng, n: (
            1.5 * rng.choice([-1.0, 1.0], (n, 1)) + 0.3 * rng.standard_normal((n, 2))
        )
    import jax

    from diffprior.problems.synthetic import synthetic

    problem = synthetic(name)
    return lambda rng, n: np.asarray(
        problem.sample_parameters(jax.random.key(int(rng.integers(2**31))), n), np.float64
    )


class Clusters:
    """Five Gaussian clusters in eight dimensions, noise 0.5, features N(0, I / d)."""

    noise_std = 0.5

    def __init__(self, seed: int) -> None:
        from diffprior.priors.from_tasks.components import Components

        self.rng, self.dim = np.random.default_rng([seed, 8]), 8
        self.centers = 1.5 * self.rng.standard_normal((5, self.dim))
        self.halves = 0.5 * self.rng.standard_normal((5, self.dim, self.dim)) / np.sqrt(self.dim)
        covs = self.halves @ np.swapaxes(self.halves, 1, 2)
        self.truth = Components(np.full(5, 0.2), self.centers, covs)

    def logs(self, num_tasks: int, mean_rows: float) -> "Logs":
        """Rows of new tasks, geometric in number."""
        from diffprior.logs.logs import Logs

        rng = self.rng
        which = rng.integers(5, size=num_tasks)
        noise = rng.standard_normal((num_tasks, self.dim))
        thetas = self.centers[which] + np.einsum("nij,nj->ni", self.halves[which], noise)
        tasks = np.repeat(np.arange(num_tasks), rng.geometric(1 / mean_rows, num_tasks))
        x = rng.standard_normal((len(tasks), self.dim)) / np.sqrt(self.dim)
        y = np.sum(x * thetas[tasks], axis=1) + self.noise_std * rng.standard_normal(len(tasks))
        return Logs(tasks, x, y)
