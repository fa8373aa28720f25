"""The posterior-quality figure of Appendix C.4: distance from the true posterior against n.

`python -m experiments.posterior --quick`
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import typer
from scipy.stats import sem

import diffprior as dp
from diffprior.evaluate import Distance, Tasks, distance_over_floor
from diffprior.evaluate.tasks import draw_posteriors
from diffprior.progress import Progress, progress
from diffprior.reporting.page import Block, Callout, Heading, SideBySide, Text
from diffprior.reporting.tables import Table, plus_minus

from .agents import LearnedPriors, agent_specs
from .cache import ResultCache
from .command import Fresh, Json, Out, Problems, Quick, Seed, conduct
from .figures import Clouds, Curve, Panel, panels_figure
from .report import picture, write_report

NAMES = ("cross", "H", "triangles")
SIZES = (0, 1, 2, 5, 10, 20, 50, 100, 200)
NUM_SAMPLES = 10_000
NUM_SHOWN = 2000  # samples of a prior in a picture


@dataclass(frozen=True)
class SamplerQuality:
    """One sampler on one mixture, by size of history."""

    distance: list[float]
    distance_error: list[float]
    ratio: list[float]  # distance over that of exact draws from each other
    ratio_error: list[float]
    trace_ratio: list[float]  # trace of the covariance over that of the true posterior
    floor: list[float]


@dataclass(frozen=True)
class MixtureResult:
    """All samplers on one mixture."""

    name: str
    sizes: tuple[int, ...]
    samplers: dict[str, SamplerQuality]


@dataclass(frozen=True)
class PosteriorResult:
    """All samplers on all mixtures."""

    settings: dict[str, str]
    mixtures: tuple[MixtureResult, ...]

    @property
    def summary(self) -> list[Table]:
        """Tables for a terminal."""
        return [ratio_table(result) for result in self.mixtures]


def sampler_names() -> tuple[str, ...]:
    """The samplers that are scored: those of the agents, and the paper's particle filter."""
    specs = [s.name for s in agent_specs() if s.sampler is not None and s.name != "Exact"]
    return (*specs, "SMC")


def make_sampler(name: str, priors: LearnedPriors) -> dp.AbstractSampler:
    """The sampler of this name, with its prior."""
    if name == "SMC":
        return dp.ParticleFilter(priors["paper"])
    (spec,) = agent_specs((name,))
    assert spec.sampler is not None
    return spec.sampler(priors[spec.prior])


def run_posterior(
    out: Path,
    cache: ResultCache,
    *,
    names: tuple[str, ...] = NAMES,
    quick: bool = False,
    seed: int = 0,
) -> PosteriorResult:
    """Run what is missing, draw the figure and write the report."""
    sizes = SIZES[1::3] if quick else SIZES
    histories, draws = effort_of(quick)
    learned = {name: _priors(name, cache, seed) for name in names}
    runs = [_MixtureRun(name, learned[name], sizes, quick, seed) for name in names]
    with progress("", len(names) * len(sampler_names())) as shown:
        results = tuple(run.run(shown) for run in runs)
    settings = {
        "histories of each size": str(histories),
        "draws of each posterior": str(draws),
        "training samples": str(NUM_SAMPLES),
        "seed": str(seed),
    }
    found = PosteriorResult(settings, results)
    title, blocks = "Posteriors of Gaussian mixtures", _blocks(out, found, learned)
    write_report(out, title, _verdict(found), blocks, settings, cache)
    return found


def _priors(name: str, cache: ResultCache, seed: int) -> LearnedPriors:
    samples = np.asarray(
        dp.example_mixture(name).sample(jax.random.key(seed), NUM_SAMPLES), np.float64
    )
    return LearnedPriors(name, samples, cache, seed)


class _MixtureRun:
    """Samplers on one mixture; asks the cache for each."""

    def __init__(
        self, name: str, priors: LearnedPriors, sizes: tuple[int, ...], quick: bool, seed: int
    ) -> None:
        self.name, self.priors, self.sizes, self.seed = name, priors, sizes, seed
        self.num_histories, self.num_draws = effort_of(quick)

    def run(self, shown: Progress) -> MixtureResult:
        found = {}
        for sampler in sampler_names():
            shown.describe(f"{self.name}, {sampler}")
            found[sampler] = self.quality(sampler)
            shown.advance()
        return MixtureResult(self.name, self.sizes, found)

    def quality(self, sampler: str) -> SamplerQuality:
        settings = {
            "sizes": self.sizes,
            "histories": self.num_histories,
            "draws": self.num_draws,
            "seed": self.seed,
            "samples": self.priors.digest,
        }
        name = f"posteriors, {self.name}, {sampler}"
        compute = functools.partial(self._quality, sampler)
        return self.priors.cache.numbers(SamplerQuality, name, settings, compute)

    def _quality(self, sampler: str) -> SamplerQuality:
        made = make_sampler(sampler, self.priors)
        scored = [self._distance(made, size) for size in self.sizes]
        return SamplerQuality(
            distance=[float(found.distances.mean()) for found, _ in scored],
            distance_error=[float(sem(found.distances)) for found, _ in scored],
            ratio=[found.ratio for found, _ in scored],
            ratio_error=[found.standard_error for found, _ in scored],
            trace_ratio=[trace_ratio for _, trace_ratio in scored],
            floor=[float(found.floors.mean()) for found, _ in scored],
        )

    def _distance(self, sampler: dp.AbstractSampler, size: int) -> tuple[Distance, float]:
        """Distance after so many observations, and the trace of the covariance over the exact."""
        truth, count = dp.example_mixture(self.name), self.num_draws
        tasks = Tasks.simulate(
            truth,
            dp.Linear(noise_std=1.0),
            num_tasks=self.num_histories,
            num_observations=size,
            seed=self.seed,
        )
        exact = draw_posteriors(dp.Exact(truth), tasks, 2 * count, 1000 + self.seed).values
        ours = draw_posteriors(sampler, tasks, count, self.seed + 1).values
        traces = [np.nanvar(draws, axis=1).sum(axis=1).mean() for draws in (ours, exact)]
        distance = distance_over_floor(ours, exact[:, :count], exact[:, count:])
        return distance, float(traces[0] / traces[1])


def effort_of(quick: bool) -> tuple[int, int]:
    """Histories of each size, and draws of each posterior."""
    return (4, 200) if quick else (20, 500)


def ratio_table(result: MixtureResult) -> Table:
    """Distance over its floor."""
    rows = [
        [name, *(plus_minus(*pair) for pair in zip(found.ratio, found.ratio_error, strict=True))]
        for name, found in result.samplers.items()
    ]
    caption = (
        f"{result.name}: earth mover's distance from the true posterior over that of exact draws "
        "from each other, after n random actions; 1 is exact."
    )
    return Table(("sampler", *(f"n = {size}" for size in result.sizes)), rows, caption)


def trace_table(result: MixtureResult) -> Table:
    """Width of the posterior."""
    rows = [
        [name, *(f"{value:.2f}" for value in found.trace_ratio)]
        for name, found in result.samplers.items()
    ]
    caption = f"{result.name}: trace of the covariance over that of the true posterior."
    return Table(("sampler", *(f"n = {size}" for size in result.sizes)), rows, caption)


def _blocks(out: Path, result: PosteriorResult, learned: dict[str, LearnedPriors]) -> list[Block]:
    panels = [_panel(found) for found in result.mixtures]
    clouds = [_clouds(found.name, learned[found.name]) for found in result.mixtures]
    shown = picture(out, "posterior", _CAPTION, lambda: panels_figure(panels, clouds))
    tables = [SideBySide([ratio_table(found), trace_table(found)]) for found in result.mixtures]
    return [Text(_INTRODUCTION), shown, Heading("Distance and width"), *tables]


def _verdict(result: PosteriorResult) -> Callout:
    """The sampler nearest to each true posterior after most actions."""
    parts = []
    for found in result.mixtures:
        name, best = min(found.samplers.items(), key=lambda each: each[1].ratio[-1])
        ratio = plus_minus(best.ratio[-1], best.ratio_error[-1])
        parts.append(f"{found.name}: {name}, at {ratio} times the distance of exact draws")
    size = result.mixtures[0].sizes[-1]
    return Callout(f"Nearest to the true posterior after {size} actions: {'; '.join(parts)}.")


def _clouds(name: str, priors: LearnedPriors) -> Clouds:
    draws = priors["default"].sample(jax.random.key(priors.seed + 1), NUM_SHOWN)
    return Clouds(name, priors.samples[:NUM_SHOWN], np.asarray(draws))


def _panel(result: MixtureResult) -> Panel:
    curves = {
        name: Curve(result.sizes, found.distance, found.distance_error)
        for name, found in result.samplers.items()
    }
    floor = next(iter(result.samplers.values())).floor
    curves["two exact samples"] = Curve(result.sizes, floor, [0.0] * len(floor))
    return Panel(result.name, "observations", "earth mover's distance", curves, {}, True, "symlog")


_INTRODUCTION = (
    "Mixtures of Gaussians, whose posteriors are known, as priors; histories of n random actions "
    "from the unit ball with linear rewards and noise of standard deviation 1. A sampler is good "
    "where its distance is that of two exact samples, and its width that of the true posterior."
)
_CAPTION = (
    "Above: samples of the true prior (blue) and of the default one learned from them (red). "
    "Below: earth mover's distance of each sampler from the true posterior."
)


def main(
    out: Out = Path("results/posterior"),
    json: Json = None,
    quick: Quick = False,
    problem: Problems = None,
    fresh: Fresh = False,
    seed: Seed = 0,
) -> None:
    """Distance of every sampler from the exact posterior (Appendix C.4)."""
    names = tuple(problem or NAMES)
    run = functools.partial(run_posterior, out, names=names, quick=quick, seed=seed)
    conduct(run, out, json, fresh)


if __name__ == "__main__":
    typer.run(main)
