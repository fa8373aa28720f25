"""The posterior-quality figure of Appendix C.4: distance from the true posterior against n."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..evaluate.posterior import PosteriorQuality, posterior_quality
from ..priors.diffusion import DiffusionPrior
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior
from ..problems.mixtures import mixture
from ..samplers.base import AbstractSampler
from ..samplers.dps import DPS
from ..samplers.evidence_dps import EvidenceDPS
from ..samplers.exact import Exact
from ..samplers.laplace_dps import LaplaceDPS
from ..samplers.particle_filter import ParticleFilter
from ..samplers.twisted_smc import TwistedSMC
from .output import save_figure, write_report
from .parts import Parts, digest
from .plots import quality_figure
from .report import Block, Figure, Heading, Table, Text, plus_minus

NAMES = ("cross", "H", "triangles")
SIZES = (0, 1, 2, 5, 10, 20, 50, 100, 200)
NUM_SHOWN = 2000  # samples of a prior in a picture


def samplers_of(
    samples: np.ndarray, paper: DiffusionPrior, ours: DiffusionPrior, seed: int
) -> dict[str, AbstractSampler]:
    """The paper's methods and ours, each with a prior learned from the samples."""
    dim = samples.shape[1]
    return {
        "TS": Exact(GaussianPrior(np.zeros(dim), np.eye(dim))),
        "TunedTS": Exact(GaussianPrior.fit(samples)),
        "MixTS": Exact(MixturePrior.fit(samples, num_components=2, seed=seed)),
        "DPS": DPS(paper),
        "SMC": ParticleFilter(paper),
        "DiffTS (paper)": LaplaceDPS(paper, covariance="paper"),
        "LaplaceDPS": LaplaceDPS(ours),
        "TwistedSMC": TwistedSMC(ours),
        "EvidenceDPS": EvidenceDPS(ours),
    }


def posterior_experiment(
    out: Path,
    parts: Parts,
    *,
    names: tuple[str, ...] = NAMES,
    quick: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Run what is missing, draw the figure, write the report, and return the numbers."""
    sizes = SIZES[1::3] if quick else SIZES
    histories, draws = (4, 200) if quick else (20, 500)
    parts.watch.plan(3 * len(names))
    panels = [_panel(parts, name, sizes, histories, draws, seed) for name in names]
    figure = save_figure(out, "posterior", quality_figure, panels)
    settings = {
        "histories of each size": str(histories),
        "draws of each posterior": str(draws),
        "training samples": "10000",
        "seed": str(seed),
    }
    write_report(out, "Posteriors of Gaussian mixtures", _blocks(panels, figure), settings, parts)
    kept = ("name", "sizes", "curves", "floor")
    return {"seed": seed, "quick": quick, "panels": [{k: p[k] for k in kept} for p in panels]}


def _panel(
    parts: Parts, name: str, sizes: tuple[int, ...], histories: int, draws: int, seed: int
) -> dict[str, Any]:
    """What the figure shows of one mixture."""
    prior = mixture(name)
    samples = np.asarray(prior.sample(jax.random.key(seed), 10_000), np.float64)
    paper, ours = (
        parts.prior(f"prior, {name}, {preset}", samples, preset=preset, seed=seed)
        for preset in ("paper", "default")
    )
    settings = {"sizes": sizes, "histories": histories, "draws": draws, "seed": seed}

    def run() -> dict[str, Any]:
        samplers = samplers_of(samples, paper, ours, seed)
        rows = posterior_quality(
            prior, samplers, sizes, num_histories=histories, num_draws=draws, seed=seed
        )
        return _curves(sizes, rows)

    about = {**settings, "samples": digest(samples)}
    found = parts.numbers(f"posteriors, {name}", about, run)
    learned = np.asarray(ours.sample(jax.random.key(seed + 1), NUM_SHOWN))
    shown = {"true": samples[:NUM_SHOWN], "learned": learned}
    return {"name": name, "sizes": list(sizes), **found, **shown}


def _curves(sizes: tuple[int, ...], rows: list[PosteriorQuality]) -> dict[str, Any]:
    curves: dict[str, Any] = {}
    floor = []
    for size in sizes:
        at_size = [row for row in rows if row.num_observations == size]
        floor.append(float(np.mean(at_size[0].distance.floors)))
        for row in at_size:
            curve = curves.setdefault(row.sampler, {key: [] for key in _KEYS})
            values = row.distance.distances
            curve["mean"].append(float(values.mean()))
            curve["se"].append(float(values.std(ddof=1) / np.sqrt(len(values))))
            curve["ratio"].append(row.distance.ratio)
            curve["ratio_se"].append(row.distance.standard_error)
            curve["trace_ratio"].append(row.trace_ratio)
    return {"curves": curves, "floor": floor}


_KEYS = ("mean", "se", "ratio", "ratio_se", "trace_ratio")


def _blocks(panels: list[dict[str, Any]], figure: bytes) -> list[Block]:
    blocks: list[Block] = [Text(_INTRODUCTION), Figure(figure, _CAPTION)]
    for panel in panels:
        title = Heading(str(panel["name"]))
        blocks += [title, _table(panel, "ratio", _RATIO), _table(panel, "trace_ratio", _TRACE)]
    return blocks


def _table(panel: dict[str, Any], key: str, caption: str) -> Table:
    def cells(curve: dict[str, list[float]]) -> list[str]:
        if key == "ratio":
            pairs = zip(curve["ratio"], curve["ratio_se"], strict=True)
            return [plus_minus(value, error) for value, error in pairs]
        return [f"{value:.2f}" for value in curve[key]]

    columns = ("sampler", *(f"n = {size}" for size in panel["sizes"]))
    rows = [[name, *cells(curve)] for name, curve in panel["curves"].items()]
    return Table(columns, rows, caption)


_INTRODUCTION = (
    "Mixtures of Gaussians, whose posteriors are known, as priors; histories of n random actions "
    "from the unit ball with linear rewards and noise of standard deviation 1."
)
_CAPTION = (
    "Above: samples of the true prior (blue) and the learned one (red). Below: earth mover's "
    "distance of each sampler from the true posterior."
)
_RATIO = "Distance over that of exact draws from each other, with its standard error: 1 is exact."
_TRACE = "Trace of the covariance over that of the true posterior: below 1 is too narrow."
