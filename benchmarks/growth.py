"""How the cost of a draw grows with stages, particles, draws at once, parameters, components, rows.

`python -m benchmarks.growth` measures it and draws `growth.png`. Times are lower quartiles, which
other work on the machine disturbs less than medians.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import diffprior as dp
from diffprior.files.atomic import write_atomic
from diffprior.reporting.figures import DATA, MODEL, legend_below, new_figure, render

from .distributions import clusters
from .harness import Bench, Measurement, command, take_turns
from .speed import history

COST = "microseconds per draw"
AT_ONCE = 256  # draws of one history, unless their number is what grows
LAST = 3  # sizes that a line of growth goes through
COMPONENTS, DIM, ROWS = 8, 4, 20  # unless they are what grows
TITLES = {
    "stages": "stages of a chain",
    "particles": "particles",
    "draws": "draws at once",
    "parameters": "parameters d",
    "components": "components K",
    "rows": "observations N",
}
COLORS = {
    "EvidenceDPS": MODEL,
    "LaplaceDPS": DATA,
    "TwistedSMC": "#3f8f5f",
    "Exact": "#8a6fb0",
    "EvidenceDPS, logistic": "#e0912f",
}


class Case(NamedTuple):
    """A sampler at one size of what grows; both are made when they are measured."""

    grows: str
    at: int
    name: str
    sampler: Callable[[], dp.AbstractSampler]
    evidence: Callable[[], dp.AbstractEvidence]
    num_draws: int = AT_ONCE


def growth(bench: Bench) -> list[Measurement]:
    """Microseconds per draw as one thing grows, all draws being from one history."""
    return [measure(case, 3 if bench.quick else 7) for case in cases(bench.quick)]


def cases(quick: bool) -> Iterator[Case]:
    """Cases: a mixture of 8 clusters in 4 parameters, 20 linear rewards."""
    few = 2 if quick else None
    usual, linear = partial(_sampler, COMPONENTS, DIM), dp.Linear(noise_std=1.0)
    rewards = partial(_observed, linear, ROWS, DIM)
    both = (dp.EvidenceDPS, dp.Exact)
    for t in (5, 10, 20, 50, 100)[:few]:
        for kind in (dp.EvidenceDPS, dp.LaplaceDPS):
            yield Case("stages", t, kind.__name__, partial(usual, kind, steps=t), rewards)
    for k in (1, 4, 16, 64)[:few]:
        particles = partial(usual, dp.TwistedSMC, num_particles=k)
        yield Case("particles", k, "TwistedSMC", particles, rewards, 32)
    for n, kind in itertools.product((1, 10, 100, 1000, 10_000)[:few], both):
        yield Case("draws", n, kind.__name__, partial(usual, kind), rewards, n)
    for d, kind in itertools.product((2, 4, 8, 16, 32)[:few], both):
        observed = partial(_observed, linear, ROWS, d)
        yield Case("parameters", d, kind.__name__, partial(_sampler, COMPONENTS, d, kind), observed)
    for k, kind in itertools.product((1, 4, 16, 64, 256)[:few], both):
        yield Case("components", k, kind.__name__, partial(_sampler, k, DIM, kind), rewards)
    for n in (10, 100, 1000)[:few]:
        for name, family in (("EvidenceDPS", linear), ("EvidenceDPS, logistic", dp.Logistic())):
            observed = partial(_observed, family, n, DIM)
            yield Case("rows", n, name, partial(usual, dp.EvidenceDPS), observed)


def _sampler(num_components: int, dim: int, kind: Any, **options: int) -> dp.AbstractSampler:
    return kind(clusters(dim, num_components), **options)


def _observed(family: dp.AbstractLikelihood, size: int, dim: int) -> dp.AbstractEvidence:
    return family.observe(*history(dim, size))


def measure(case: Case, repeats: int) -> Measurement:
    """Time one case."""
    key, sampler, evidence = jax.random.key(0), case.sampler(), case.evidence()

    def draw() -> object:
        drawn = sampler.sample_many(key, evidence, case.num_draws, throw=False)
        return jax.block_until_ready(drawn)

    quantities: dict[str, float | str] = {
        COST: take_turns({"": draw}, repeats)[""].low / case.num_draws * 1e6,
        "sampler": case.name,
        "grows": case.grows,
        "at": case.at,
    }
    return Measurement(f"{case.name}, {TITLES[case.grows]}: {case.at}", quantities)


def growth_figure(measured: list[Measurement]) -> Any:
    """Cost against size on logarithmic axes, with a line of growth through the last sizes and its
    slope: 0 is free, 1 proportional."""
    figure, axes = new_figure(3, 2, width=2.1, height=1.9)
    for axis, (grows, title) in zip(axes.flat, TITLES.items(), strict=True):
        here = [m.quantities for m in measured if m.quantities["grows"] == grows]
        for name in dict.fromkeys(q["sampler"] for q in here):
            points = np.array([[q["at"], q[COST]] for q in here if q["sampler"] == name], float)
            _curve(axis, points, str(name))
        sizes = sorted({int(q["at"]) for q in here})
        axis.set(xscale="log", yscale="log", xlabel=title)
        axis.set_xticks(sizes, [{1000: "10³", 10_000: "10⁴"}.get(size, size) for size in sizes])
        axis.set_xticks([], minor=True)
        axis.yaxis.set_minor_formatter("")
        axis.margins(x=0.14, y=0.15)
    for axis in axes[:, 0]:
        axis.set_ylabel("µs per draw")
    legend_below(figure)
    return figure


def _curve(axis: Any, points: np.ndarray, name: str) -> None:
    """Points, the line through the last of them, and its slope to the right."""
    color, last = COLORS[name], points[-LAST:]
    axis.plot(*points.T, "o", ms=3.5, color=color, label=name)
    axis.plot(*points.T, "-", lw=0.6, alpha=0.6, color=color)
    slope, level = line_of_growth(last)
    ends = last[[0, -1], 0]
    axis.plot(ends, level * ends**slope, "--", lw=1.5, color=color)
    place = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
    axis.annotate(f"{slope:.1f}", last[-1], fontsize=8, color=color, **place)


def line_of_growth(points: np.ndarray) -> tuple[float, float]:
    """The a and b of cost = b size^a by least squares on logarithmic axes."""
    sizes, costs = np.log(points).T
    slope, level = np.polyfit(sizes, costs, 1)
    return float(slope), float(np.exp(level))


def _draw(out: Path, found: dict[str, list[Measurement]]) -> None:
    write_atomic(out / "growth.png", render(lambda: growth_figure(found["growth"]), "png"))


if __name__ == "__main__":
    command({"growth": growth}, finish=_draw)
