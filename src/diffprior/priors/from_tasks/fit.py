"""One family alone from logs: what `fit` of the priors calls when it is given rows."""

from typing import Any

import numpy as np

from ...checks import positive_int
from .components import Components
from .data import AnyLogs, blocks_of, resolve
from .gaussian import fit_gaussian
from .linear import LinearBlock
from .search import Candidate, fit_candidate, gaussian_of, search_mixture


def gaussian_from_logs(logs: AnyLogs, likelihood: Any) -> Components:
    """The Gaussian of greatest marginal likelihood; unknown noise is estimated."""
    likelihood, _ = resolve(logs, likelihood)
    blocks = blocks_of(logs, likelihood)
    if isinstance(blocks[0], LinearBlock):
        return fit_gaussian(blocks).components
    return gaussian_of(blocks)


def mixture_from_logs(
    logs: AnyLogs, likelihood: Any, num_components: int | None = None, seed: int = 0
) -> Components:
    """A mixture of so many components; by default what tasks held out in turn favor."""
    likelihood, _ = resolve(logs, likelihood)
    if num_components is None:
        found = search_mixture(logs, likelihood, seed=seed)
        return found.components if found.pays else found.gaussian
    count = positive_int("num_components", num_components)
    if logs.num_tasks < count:
        raise ValueError(
            f"`num_components`: expected at most one for each of {logs.num_tasks} tasks, got "
            f"{count}; lower it"
        )
    blocks = blocks_of(logs, likelihood)
    return fit_candidate(blocks, gaussian_of(blocks), Candidate(num_components=count), seed)


def draws_from(components: Components, count: int, seed: int) -> np.ndarray:
    """Draws of a mixture, (count, d)."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(components), size=count, p=components.weights)
    noise = rng.standard_normal((count, components.dim))
    draws = components.means[chosen].copy()
    for k in np.unique(chosen):
        own = chosen == k
        draws[own] += noise[own] @ np.linalg.cholesky(components.covs[k]).T
    return draws
