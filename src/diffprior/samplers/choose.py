"""Which sampler serves a prior best."""

from ..priors.base import AbstractClosedFormPrior, AbstractPrior
from ..priors.diffusion import DiffusionPrior
from .base import AbstractSampler
from .chain import as_diffusion
from .evidence_dps import EvidenceDPS
from .exact import Exact
from .twisted_smc import TwistedSMC


def best_sampler(prior: AbstractPrior) -> AbstractSampler:
    """Exact for closed forms, EvidenceDPS where any evidence can be denoised, else TwistedSMC."""
    if isinstance(prior, AbstractClosedFormPrior):
        return Exact(prior)
    diffusion: DiffusionPrior = as_diffusion(prior)
    return EvidenceDPS(diffusion) if diffusion.denoiser.general else TwistedSMC(diffusion)
