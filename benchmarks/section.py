"""What a section of the benchmark is given, and what it returns."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from diffprior.files.cache import ResultCache, array_digest
from diffprior.priors.base import AbstractPrior
from diffprior.priors.diffusion import DiffusionPrior
from diffprior.priors.mixture import MixturePrior
from diffprior.problems.mixtures import example_mixture
from diffprior.reporting.tables import Table

from .timing import Timing

NUM_SAMPLES = 10_000
SAMPLES_SEED = 100


@dataclass(frozen=True)
class Measurement:
    """Quantities of one case, by name; units are in the names."""

    case: str
    quantities: Mapping[str, float | str]


@dataclass(frozen=True)
class Bench:
    """How much to measure, and priors that are learned once."""

    cache: ResultCache
    quick: bool = False

    def prior(self, name: str, preset: str = "default") -> DiffusionPrior:
        """A prior learned from 10,000 samples of a mixture."""
        return self.learned(name, mixture_samples(example_mixture(name)), preset)

    def learned(self, name: str, samples: np.ndarray, preset: str = "default") -> DiffusionPrior:
        """A prior learned from samples, or as it was kept."""
        return self.cache.object(
            f"prior, {name}, {preset}",
            {"preset": preset, "samples": array_digest(samples)},
            lambda: DiffusionPrior.fit(samples, preset=preset, progress=False),
        )


def mixture_samples(
    prior: AbstractPrior, count: int = NUM_SAMPLES, seed: int = SAMPLES_SEED
) -> Any:
    """Samples of a prior, in double precision."""
    return np.asarray(prior.sample(jax.random.key(seed), count), np.float64)


def clusters(dim: int) -> MixturePrior:
    """Ten round clusters in d dimensions."""
    means = 1.5 * np.random.default_rng(3).standard_normal((10, dim))
    return MixturePrior(np.ones(10), means, np.tile(0.3**2 * np.eye(dim), (10, 1, 1)))


def milliseconds(timing: Timing) -> dict[str, float]:
    """A timing as quantities."""
    return {
        "median, ms": timing.median * 1e3,
        "p99, ms": timing.p99 * 1e3,
        "first, s": timing.first,
    }


def table(title: str, measurements: list[Measurement]) -> Table:
    """A row for each case, a column for each quantity."""
    columns = list(dict.fromkeys(name for m in measurements for name in m.quantities))
    rows = [
        [m.case, *(_cell(m.quantities.get(name, "")) for name in columns)] for m in measurements
    ]
    return Table(("", *columns), rows, title)


def as_numbers(measurements: list[Measurement]) -> list[dict[str, Any]]:
    """Plain numbers, for a file."""
    return [dataclasses.asdict(measurement) for measurement in measurements]


def _cell(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
