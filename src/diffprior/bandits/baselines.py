"""Simple rivals of Thompson sampling: optimism, luck, and both in turn."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from ..checks import positive, positive_int
from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..gaussian import Gaussian
from ..priors.gaussian import GaussianPrior
from .agents import AbstractAgent, checked_kind, checked_likelihood


class AbstractGaussianAgent(AbstractAgent):
    """An agent that infers with a Gaussian prior: exactly where rewards are linear, by Laplace's
    approximation elsewhere."""

    prior: eqx.AbstractVar[GaussianPrior]

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.prior.dim

    def moments(self) -> Gaussian:
        """Those of the prior."""
        return self.prior.moments()

    def posterior(self, evidence: AbstractEvidence) -> tuple[Gaussian, Bool[Array, ""]]:
        """What the agent believes, and whether it could not be found.

        Args:
            evidence: What the task has shown so far.

        Returns:
            A Gaussian, and whether its search failed.
        """
        posterior, log_evidence = evidence.condition(self.prior.moments())
        return posterior, jnp.isnan(log_evidence)

    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
        """Parameters from the Gaussian posterior."""
        posterior, failed = self.posterior(evidence)
        return posterior.sample(key), failed


class LinUCB(AbstractGaussianAgent):
    """Optimism: posterior mean plus `width` posterior standard deviations of phi' theta.

    With a generalized linear model the posterior is Laplace's approximation.

    Args:
        prior: A Gaussian prior.
        likelihood: How rewards arise from parameters.
        width: Posterior standard deviations added to the mean.

    References:
        Abbasi-Yadkori, Pal and Szepesvari (2011), with a width that is chosen rather than derived.
    """

    prior: GaussianPrior
    likelihood: AbstractLikelihood
    width: Float[Array, ""]

    def __init__(self, prior: Any, likelihood: Any, *, width: float = 2.0) -> None:
        self.prior = _checked_gaussian(prior)
        self.likelihood = checked_likelihood(likelihood)
        self.width = positive("width", width, "pass a number of standard deviations, such as 2")

    def validate(self) -> None:
        """Refuse a width that is not positive."""
        super().validate()
        positive("width", self.width)

    def index(
        self, key: Key[Array, ""], evidence: AbstractEvidence, features: Float[Array, "k d"]
    ) -> tuple[Float[Array, " k"], Bool[Array, ""]]:
        """The upper confidence bound of phi' theta."""
        posterior, failed = self.posterior(evidence)
        variance = jnp.sum((features @ posterior.cov) * features, axis=1)
        return features @ posterior.mean + self.width * jnp.sqrt(variance), failed


class EpsilonGreedy(AbstractGaussianAgent):
    """The action of the highest posterior mean, or with probability `epsilon` a random one.

    Args:
        prior: A Gaussian prior.
        likelihood: How rewards arise from parameters.
        epsilon: Probability of a random action.
    """

    prior: GaussianPrior
    likelihood: AbstractLikelihood
    epsilon: Float[Array, ""]

    def __init__(self, prior: Any, likelihood: Any, *, epsilon: float = 0.05) -> None:
        self.prior = _checked_gaussian(prior)
        self.likelihood = checked_likelihood(likelihood)
        self.epsilon = positive("epsilon", epsilon, "pass a probability, such as 0.05")
        if self.epsilon > 1:
            raise ValueError(f"`epsilon`: expected a probability, got {epsilon:g}; try 0.05")

    def validate(self) -> None:
        """Refuse a probability that is none."""
        super().validate()
        if not 0 < float(self.epsilon) <= 1:
            raise ValueError(f"`epsilon`: expected a probability, got {self.epsilon}")

    def index(
        self, key: Key[Array, ""], evidence: AbstractEvidence, features: Float[Array, "k d"]
    ) -> tuple[Float[Array, " k"], Bool[Array, ""]]:
        """phi' theta at the posterior mean, or random numbers."""
        explore_key, random_key = jax.random.split(key)
        posterior, failed = self.posterior(evidence)
        greedy = features @ posterior.mean
        random = jax.random.uniform(random_key, greedy.shape, greedy.dtype)
        return jnp.where(jax.random.bernoulli(explore_key, self.epsilon), random, greedy), failed


class Uniform(AbstractAgent):
    """Any action, with equal probability.

    Args:
        likelihood: How rewards arise; the agent does not use it.
        dim: Number of parameters d, which a `Bandit` needs; None if any number will do.
    """

    likelihood: AbstractLikelihood
    num_parameters: int | None = eqx.field(static=True)

    def __init__(self, likelihood: Any, *, dim: int | None = None) -> None:
        self.likelihood = checked_likelihood(likelihood)
        self.num_parameters = None if dim is None else positive_int("dim", dim)

    @property
    def dim(self) -> int | None:
        """Number of parameters d; None if any number will do."""
        return self.num_parameters

    def index(
        self, key: Key[Array, ""], evidence: AbstractEvidence, features: Float[Array, "k d"]
    ) -> tuple[Float[Array, " k"], Bool[Array, ""]]:
        """Random numbers."""
        index = jax.random.uniform(key, (features.shape[0],), features.dtype)
        return index, jnp.array(False)


def _checked_gaussian(prior: Any) -> GaussianPrior:
    return checked_kind("prior", prior, GaussianPrior, "pass GaussianPrior(mean, cov)")
