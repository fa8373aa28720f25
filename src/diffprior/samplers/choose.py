"""Which sampler serves a prior best."""

from typing import Any

from ..priors.adaptor import as_prior
from ..priors.base import AbstractClosedFormPrior
from ..priors.diffusion import DiffusionPrior
from .base import AbstractSampler
from .evidence_dps import EvidenceDPS
from .exact import Exact
from .few_passes import FewPasses, stands_on_a_mixture
from .twisted_smc import TwistedSMC


def best_sampler(prior: Any, temperature: Any = 1.0) -> AbstractSampler:
    """The sampler that is most accurate for a prior.

    Args:
        prior: an `AbstractPrior`, or any object with `dim`, `sample`, `denoise` and `moments`.
        temperature: counts the evidence 1 / temperature times; 1 is Bayes' rule.

    Returns:
        `Exact` for a closed form, `FewPasses` for a learned prior that stands on a mixture,
        `TwistedSMC` for a learned one that denoises isotropic evidence only, and `EvidenceDPS` for
        any other.

    Raises:
        ValueError: if a member of the prior is missing, or the temperature is not positive.
    """
    prior = as_prior(prior)
    if isinstance(prior, AbstractClosedFormPrior):
        return Exact(prior, temperature=temperature)
    if isinstance(prior, DiffusionPrior) and not prior.denoiser.general:
        return TwistedSMC(prior, temperature=temperature)
    if isinstance(prior, DiffusionPrior) and stands_on_a_mixture(prior):
        return FewPasses(prior, temperature=temperature)
    return EvidenceDPS(prior, temperature=temperature)
