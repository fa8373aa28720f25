"""Which agent serves a prior, a sampler or an agent."""

from typing import Any

from ..priors.adaptor import PriorDenoiser
from ..priors.base import AbstractPrior
from ..priors.diffusion import DiffusionPrior
from ..samplers.base import AbstractSampler
from ..samplers.choose import best_sampler
from .agents import AbstractAgent, ThompsonSampling, kind_of


def as_agent(prior: Any, likelihood: Any, temperature: Any) -> AbstractAgent:
    """The agent, or Thompson sampling with the sampler, or with the best one for the prior."""
    if isinstance(prior, AbstractAgent):
        if likelihood is not None or temperature is not None:
            name = "likelihood" if likelihood is not None else "temperature"
            raise ValueError(
                f"`{name}`: expected None with an agent, got {likelihood or temperature!r}; "
                f"{type(prior).__name__} has its own"
            )
        return prior
    if isinstance(prior, AbstractPrior) or hasattr(prior, "denoise"):
        prior = best_sampler(prior)
    if not isinstance(prior, AbstractSampler):
        raise ValueError(
            f"`prior`: expected a prior, a sampler or an agent, got {kind_of(prior)};"
            " fit a prior to the parameters of past tasks, or start from GaussianPrior(mean, cov)"
        )
    sampler = prior if temperature is None else prior.at_temperature(temperature)
    return ThompsonSampling(sampler, likelihood)


def dim_of(agent: AbstractAgent) -> int:
    """Number of parameters of the agent, which must be known."""
    if agent.dim is None:
        raise ValueError(
            f"`prior`: expected an agent with a number of parameters, got {type(agent).__name__} "
            "for any number; pass dim=, as in Uniform(likelihood, dim=5)"
        )
    return agent.dim


def known_prior(agent: AbstractAgent) -> tuple[AbstractPrior, ...]:
    """The prior that a user would know the agent's by, if it has one."""
    prior = agent.sampler.prior if isinstance(agent, ThompsonSampling) else None
    if isinstance(prior, DiffusionPrior) and isinstance(prior.denoiser, PriorDenoiser):
        prior = prior.denoiser.prior
    return (prior,) if isinstance(prior, AbstractPrior) else ()
