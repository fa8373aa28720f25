"""The posterior-quality figure of Appendix C.4: distance from the true posterior against n.

`python -m experiments.posterior --quick`
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import typer
from scipy.stats import sem

import diffprior as dp
from diffprior.evaluate import distance_over_floor, simulate_tasks
from diffprior.evaluate.tasks import draw_posteriors
from diffprior.progress import progress
from diffprior.reporting.page import Block, Callout, Heading, SideBySide, Text
from diffprior.reporting.tables import Table, plus_minus

from .agents import LearnedPriors, agent_specs
from .figures import Clouds, Curve, Panel, figure_of
from .results import Problems, Quick, Results, Seed, command

NAMES = ("cross", "H", "triangles")
SIZES = (0, 1, 2, 5, 10, 20, 50, 100, 200)
NUM_SAMPLES = 10_000
NUM_SHOWN = 2000  # samples of a prior in a picture
# The samplers of the agents, and the paper's particle filter.
SAMPLERS = (*(s.name for s in agent_specs() if s.sampler and s.name != "Exact"), "SMC")


@dataclass(frozen=True)
class SamplerQuality:
    """One sampler on one mixture, by size of history."""

    distance: list[float]
    distance_error: list[float]
    ratio: list[float]  # distance over that of exact draws from each other
    ratio_error: list[float]
    trace_ratio: list[float]  # trace of the covariance over that of the true posterior
    floor: list[float]


Mixtures = dict[str, dict[str, SamplerQuality]]  # by mixture and sampler


def make_sampler(name: str, priors: LearnedPriors) -> dp.AbstractSampler:
    """The sampler of this name, with its prior."""
    if name == "SMC":
        return dp.ParticleFilter(priors["paper"])
    (spec,) = agent_specs((name,))
    assert spec.sampler is not None
    return spec.sampler(priors[spec.prior])


def run_posterior(
    results: Results,
    *,
    problem: Problems = None,
    quick: Quick = False,
    seed: Seed = 0,
    samplers: Sequence[str] = SAMPLERS,
) -> dict[str, Any]:
    """Distance of every sampler from the exact posterior (Appendix C.4)."""
    sizes, (histories, draws) = (SIZES[1::3], (4, 200)) if quick else (SIZES, (20, 500))
    learned, mixtures = {}, Mixtures()
    for name in problem or NAMES:
        drawn = dp.example_mixture(name).sample(jax.random.key(seed), NUM_SAMPLES)
        learned[name] = LearnedPriors(name, np.asarray(drawn, np.float64), results, seed)
    about = {"sizes": sizes, "histories": histories, "draws": draws, "seed": seed}
    with progress("", len(learned) * len(samplers)) as shown:
        for name, priors in learned.items():
            mixtures[name] = {}
            for sampler in samplers:
                shown.describe(f"{name}, {sampler}")
                mixtures[name][sampler] = results.numbers(
                    SamplerQuality,
                    f"posteriors, {name}, {sampler}",
                    {**about, "samples": priors.digest},
                    functools.partial(quality, sampler, priors, sizes, histories, draws),
                )
                shown.advance()
    settings = {
        "histories of each size": str(histories),
        "draws of each posterior": str(draws),
        "training samples": str(NUM_SAMPLES),
        "seed": str(seed),
    }
    clouds = [
        Clouds(name, priors.samples[:NUM_SHOWN], priors.draws("default", NUM_SHOWN))
        for name, priors in learned.items()
    ]
    panels = [_panel(name, sizes, found) for name, found in mixtures.items()]
    shown_figure = results.picture("posterior", _CAPTION, lambda: figure_of([clouds, panels]))
    ratios = [ratio_table(name, sizes, found) for name, found in mixtures.items()]
    pairs: list[Block] = [
        SideBySide([ratio, trace_table(name, sizes, found)])
        for ratio, (name, found) in zip(ratios, mixtures.items(), strict=True)
    ]
    blocks = [Text(_INTRODUCTION), shown_figure, Heading("Distance and width"), *pairs]
    title = "Posteriors of Gaussian mixtures"
    results.report(title, _verdict(mixtures, sizes[-1]), blocks, settings, ratios)
    return {"settings": settings, "sizes": sizes, "mixtures": mixtures}


def quality(
    sampler: str, priors: LearnedPriors, sizes: Sequence[int], histories: int, count: int
) -> SamplerQuality:
    """Distance after so many observations, and the trace of the covariance over the exact."""
    made, distances, traces = make_sampler(sampler, priors), [], []
    truth, linear = dp.example_mixture(priors.label), dp.Linear(noise_std=1.0)
    for size in sizes:
        tasks = simulate_tasks(
            truth,
            linear,
            num_tasks=histories,
            num_observations=size,
            seed=priors.seed,
        )
        about = tasks, linear
        exact = draw_posteriors(dp.Exact(truth), *about, 2 * count, 1000 + priors.seed).values
        ours = draw_posteriors(made, *about, count, priors.seed + 1).values
        own, true = (np.nanvar(draws, axis=1).sum(axis=1).mean() for draws in (ours, exact))
        distances.append(distance_over_floor(ours, exact[:, :count], exact[:, count:]))
        traces.append(float(own / true))
    return SamplerQuality(
        distance=[float(d.distances.mean()) for d in distances],
        distance_error=[float(sem(d.distances)) for d in distances],
        ratio=[d.ratio for d in distances],
        ratio_error=[d.standard_error for d in distances],
        trace_ratio=traces,
        floor=[float(d.floors.mean()) for d in distances],
    )


def ratio_table(name: str, sizes: Sequence[int], found: dict[str, SamplerQuality]) -> Table:
    """Distance over its floor."""
    rows = [
        [sampler, *(plus_minus(*pair) for pair in zip(own.ratio, own.ratio_error, strict=True))]
        for sampler, own in found.items()
    ]
    caption = (
        f"{name}: earth mover's distance from the true posterior over that of exact draws "
        "from each other, after n random actions; 1 is exact."
    )
    return Table(("sampler", *(f"n = {size}" for size in sizes)), rows, caption)


def trace_table(name: str, sizes: Sequence[int], found: dict[str, SamplerQuality]) -> Table:
    """Width of the posterior."""
    rows = [[s, *(f"{value:.2f}" for value in own.trace_ratio)] for s, own in found.items()]
    caption = f"{name}: trace of the covariance over that of the true posterior."
    return Table(("sampler", *(f"n = {size}" for size in sizes)), rows, caption)


def _verdict(mixtures: Mixtures, size: int) -> Callout:
    """The sampler nearest to each true posterior after most actions."""
    parts = []
    for name, found in mixtures.items():
        sampler, best = min(found.items(), key=lambda each: each[1].ratio[-1])
        ratio = plus_minus(best.ratio[-1], best.ratio_error[-1])
        parts.append(f"{name}: {sampler}, at {ratio} times the distance of exact draws")
    return Callout(f"Nearest to the true posterior after {size} actions: {'; '.join(parts)}.")


def _panel(name: str, sizes: Sequence[int], found: dict[str, SamplerQuality]) -> Panel:
    curves = {s: Curve(sizes, own.distance, own.distance_error) for s, own in found.items()}
    floor = next(iter(found.values())).floor
    curves["two exact samples"] = Curve(sizes, floor, [0.0] * len(floor))
    return Panel(name, "observations", "earth mover's distance", curves, {}, True, "symlog")


_INTRODUCTION = (
    "Mixtures of Gaussians, whose posteriors are known, as priors; histories of n random actions "
    "from the unit ball with linear rewards and noise of standard deviation 1. A sampler is good "
    "where its distance is that of two exact samples, and its width that of the true posterior."
)
_CAPTION = (
    "Above: samples of the true prior (blue) and of the default one learned from them (red). "
    "Below: earth mover's distance of each sampler from the true posterior."
)

if __name__ == "__main__":
    typer.run(command(run_posterior))
