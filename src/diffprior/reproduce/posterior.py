"""The posterior-quality figure of Appendix C.4: distance from the true posterior against n."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..evaluate.posterior import Quality, posterior_quality
from ..priors.base import AbstractPrior
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
from .plots import quality_figure

NAMES = ("cross", "H", "triangles")
SIZES = (0, 1, 2, 5, 10, 20, 50, 100, 200)


def samplers_of(samples: np.ndarray, seed: int) -> dict[str, AbstractSampler]:
    """The paper's methods and ours, each with a prior learned from the samples."""
    dim = samples.shape[1]
    paper = DiffusionPrior.fit(samples, preset="paper", seed=seed)
    ours = DiffusionPrior.fit(samples, seed=seed)
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


def posterior_figure(
    out: Path, *, names: tuple[str, ...], quick: bool, seed: int, say: Any
) -> dict[str, Any]:
    """Run the comparison, draw it, and return the numbers."""
    sizes = SIZES[1::3] if quick else SIZES
    histories, draws = (4, 200) if quick else (20, 500)
    panels = []
    for name in names:
        prior = mixture(name)
        samples = np.asarray(prior.sample(jax.random.key(seed), 10_000), np.float64)
        say(f"{name}: learning the priors")
        samplers = samplers_of(samples, seed)
        rows = posterior_quality(
            prior,
            samplers,
            sizes,
            num_histories=histories,
            num_draws=draws,
            seed=seed,
            on_row=lambda row: say(_line(row)),
        )
        learned = learned_prior(samplers).sample(jax.random.key(seed + 1), 2000)
        panels.append(_panel(name, sizes, rows, samples[:2000], np.asarray(learned)))
    out.mkdir(parents=True, exist_ok=True)
    for ending in ("png", "pdf"):
        quality_figure(panels, out / f"posterior.{ending}")
    kept = ("name", "sizes", "curves", "floor")
    return {"seed": seed, "quick": quick, "panels": [{k: p[k] for k in kept} for p in panels]}


def learned_prior(samplers: dict[str, AbstractSampler]) -> AbstractPrior:
    """The prior of our own samplers."""
    return samplers["EvidenceDPS"].prior


def _line(row: Quality) -> str:
    return (
        f"  n={row.num_observations:<6} {row.sampler:15} "
        f"EMD / floor {row.distance.ratio:8.2f}  covariance ratio {row.trace_ratio:7.2f}"
    )


def _panel(
    name: str, sizes: tuple[int, ...], rows: list[Quality], true: np.ndarray, learned: np.ndarray
) -> dict[str, Any]:
    curves: dict[str, Any] = {}
    floor = []
    for size in sizes:
        at_size = [row for row in rows if row.num_observations == size]
        floor.append(float(np.mean(at_size[0].distance.floors)))
        for row in at_size:
            curve = curves.setdefault(row.sampler, {"mean": [], "se": [], "trace_ratio": []})
            values = row.distance.distances
            curve["mean"].append(float(values.mean()))
            curve["se"].append(float(values.std(ddof=1) / np.sqrt(len(values))))
            curve["trace_ratio"].append(row.trace_ratio)
    return {
        "name": name,
        "sizes": list(sizes),
        "curves": curves,
        "floor": floor,
        "true": true,
        "learned": learned,
    }
