"""Which sampler serves a prior best."""

from numpy.typing import ArrayLike

from ..denoisers.network import CorrectedDenoiser
from ..evidence.base import AbstractLikelihood
from ..evidence.response import Response
from ..priors.base import AbstractClosedFormPrior, as_prior
from ..priors.conditional import ConditionalPrior
from ..priors.diffusion import DiffusionPrior
from ..priors.mixture import MixturePrior
from .base import AbstractSampler
from .evidence_dps import EvidenceDPS
from .exact import Exact
from .few_passes import FewPasses, has_mixture_base
from .twisted_smc import TwistedSMC

MANY = 4  # parameters; with fewer, 20 stages cost little and are a little closer than two passes
MORE_STAGES = 40  # where a covariance is right on average only, which short steps feel less

PARTICLES = 64  # where expansions may be poor, because rewards are not linear in parameters


def best_sampler(
    prior: object, temperature: ArrayLike = 1.0, *, likelihood: AbstractLikelihood | None = None
) -> AbstractSampler:
    """The sampler that serves a prior best: accurate, and quick where that costs little.

    Args:
        prior: an `AbstractPrior`, or any object with `dim`, `sample`, `denoise` and `moments`.
        temperature: counts the evidence 1 / temperature times; 1 is Bayes' rule.
        likelihood: how rewards arise, where it is known.

    Returns:
        `Exact` for a closed form, and for a learned prior that is one, because the network added
        nothing to its mixture; `FewPasses` for one of four or more parameters that is mostly a
        mixture; `TwistedSMC` for one that denoises isotropic evidence only; `EvidenceDPS` for any
        other, with 40 stages in place of 20 where a network of more than eight parameters has
        one Gaussian as its base. Given a `Response`, `Exact` for a closed form, and `TwistedSMC`
        with 64 particles for any other.

    Raises:
        ValueError: if a member of the prior is missing, or the temperature is not positive.
    """
    prior = as_prior(prior)
    if isinstance(prior, ConditionalPrior):  # of the average task
        prior = prior.residual
    closed = as_closed_form(prior)
    if closed is not None:
        return Exact(closed, temperature=temperature)
    if isinstance(likelihood, Response):
        return TwistedSMC(prior, num_particles=PARTICLES, temperature=temperature)
    if isinstance(prior, DiffusionPrior) and not prior.denoiser.general:
        return TwistedSMC(prior, temperature=temperature)
    if prior.dim >= MANY and _mostly_a_mixture(prior):
        return FewPasses(prior, temperature=temperature)
    if _right_on_average(prior):
        return EvidenceDPS(prior, steps=MORE_STAGES, temperature=temperature)
    return EvidenceDPS(prior, temperature=temperature)


def _right_on_average(prior: object) -> bool:
    """Whether covariances are from a table of held-out errors, not a mixture or a derivative."""
    denoiser = getattr(prior, "denoiser", None)
    if not isinstance(denoiser, CorrectedDenoiser):
        return False
    on_gaussian = denoiser.base is None and denoiser.correction is not None
    return on_gaussian and denoiser.draws_components


def _mostly_a_mixture(prior: object) -> bool:
    """Whether a network adds so little to a mixture that two passes miss nothing."""
    if not isinstance(prior, DiffusionPrior) or not has_mixture_base(prior):
        return False
    return bool(getattr(prior.denoiser, "negligible_correction", False))


def as_closed_form(prior: object) -> AbstractClosedFormPrior | None:
    """The closed form that a prior is, if it is one."""
    if isinstance(prior, AbstractClosedFormPrior):
        return prior
    if not isinstance(prior, DiffusionPrior) or not isinstance(prior.denoiser, CorrectedDenoiser):
        return None
    found = prior.denoiser.closed_form()
    return None if found is None else MixturePrior.from_mixture(found, prior.offset, prior.scale)
