"""The last rung: a diffusion model distilled from the best closed form, and polished by EM."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np

from ..evidence.base import AbstractLikelihood
from ..logs.labels import folds
from ..logs.logs import Logs
from ..priors.base import AbstractPrior
from ..priors.diffusion import DiffusionPrior
from ..priors.from_tasks.components import Components
from ..priors.from_tasks.data import AnyLogs
from .families import Family
from .judge import gain, task_log_evidence

NUM_DRAWS = 20_000  # of the closed form, to train on
JUDGED = 500  # tasks that decide, at most


@dataclass(frozen=True)
class Rung:
    """The diffusion model, whether it beats the closed form, and a sentence about it."""

    family: Family
    pays: bool
    sentence: str


def diffusion_rung(
    basis: Family,
    rest: AnyLogs,
    likelihood: AbstractLikelihood,
    seed: int,
    advance: Callable[[str], None],
) -> Rung:
    """Distil the closed form into a network, and compare both on tasks the rungs have chosen by."""
    advance("diffusion")
    assert basis.components is not None
    prior = distil(basis.components, seed)
    family = Family("diffusion", prior, None)
    if not isinstance(rest, Logs):
        return Rung(family, False, "the diffusion model distilled from it was not judged: no rows")
    judged = rest.select(folds(rest.hashes, 9, salt=3) == 0)
    if judged.num_tasks > JUDGED:
        order = np.argsort(judged.hashes, kind="stable")[:JUDGED]
        judged = judged.select(np.sort(order))
    difference = gain(
        task_log_evidence(family, judged, likelihood, seed)
        - task_log_evidence(basis, judged, likelihood, seed)
    )
    figures = f"{difference.mean:+.3f} +- {difference.error:.3f} nats a task beside it"
    pays = difference.mean > difference.error
    if pays:
        return Rung(family, True, f"the diffusion model was chosen: {figures}")
    return Rung(family, False, f"the diffusion model distilled from it has {figures}")


def distil(components: Components, seed: int) -> DiffusionPrior:
    """A diffusion model trained on many draws of a closed form."""
    from .families import as_prior

    draws = np.asarray(as_prior(components).sample(jax.random.key(seed), NUM_DRAWS))
    return DiffusionPrior.fit(draws, seed=seed, progress=False)


def hedged_diffusion(prior: AbstractPrior, share: float) -> AbstractPrior:
    """The prior as it is: its own training has the hedge where it was asked for."""
    return prior
