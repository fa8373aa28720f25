"""Agents turn evidence into decisions: Thompson sampling (Algorithm 3), and simple baselines."""

import abc
import functools
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, UInt32
from numpy.typing import ArrayLike

from ..checks import kind_of, on_device, positive, positive_int
from ..evidence.base import AbstractEvidence, AbstractLikelihood, Rows
from ..evidence.response import NamedFunction, Response
from ..files.base import Serializable
from ..gaussian import Gaussian
from ..priors.base import AbstractPrior, PriorDenoiser
from ..priors.diffusion import DiffusionPrior
from ..priors.gaussian import GaussianPrior
from ..samplers.base import AbstractSampler
from ..samplers.choose import best_sampler

Kind = TypeVar("Kind")


@runtime_checkable
class Index(Protocol):
    """The index that an agent maximizes at one decision: a function of the features of the actions.

    A named tuple of arrays, floats or 32-bit words, so that a program can return it. It is called
    with JAX arrays inside programs and with NumPy arrays outside.
    """

    def __call__(self, features: Float[Rows, "k d"]) -> Float[Rows, " k"]:
        """One number per action, in units of phi' theta (g is increasing)."""


class LinearIndex(NamedTuple):
    """phi' theta."""

    theta: Float[Rows, "*n d"]

    def __call__(self, features: Float[Rows, "k d"]) -> Float[Rows, " k"]:
        return features @ self.theta


@functools.cache
def _response_index(function: NamedFunction) -> type[Any]:
    """The class of indices of a response, fn(theta, phi); one for each function."""

    class ResponseIndex(NamedTuple):
        theta: Float[Rows, "*n d"]

        def __call__(self, features: Float[Rows, "k p"]) -> Float[Rows, " k"]:
            if isinstance(features, np.ndarray):
                return self.of_many(features)[0]
            return jax.vmap(function.fn, (None, 0))(jnp.asarray(self.theta), features)

        def of_many(self, features: Float[np.ndarray, "k p"]) -> Float[np.ndarray, "m k"]:
            """The index of every action under every one of several draws."""
            return function.crossed(np.atleast_2d(self.theta), features)

    return ResponseIndex


class UpperBound(NamedTuple):
    """The upper confidence bound of phi' theta, `width` standard deviations above its mean."""

    theta: Float[Rows, " d"]
    cov: Float[Rows, "d d"]
    width: Float[Rows, ""]

    def __call__(self, features: Float[Rows, "k d"]) -> Float[Rows, " k"]:
        variance = ((features @ self.cov) * features).sum(axis=1)
        return features @ self.theta + self.width * variance**0.5


class GreedyOrRandom(NamedTuple):
    """phi' theta, or where `explore` is one, random numbers."""

    theta: Float[Rows, " d"]
    explore: Float[Rows, ""]
    words: UInt32[Rows, " 2"]

    def __call__(self, features: Float[Rows, "k d"]) -> Float[Rows, " k"]:
        random = random_numbers(self.words, features.shape[0], features.dtype)
        greedy = features @ self.theta
        return greedy + self.explore * (random - greedy)


class RandomIndex(NamedTuple):
    """Random numbers."""

    words: UInt32[Rows, " 2"]

    def __call__(self, features: Float[Rows, "k d"]) -> Float[Rows, " k"]:
        return random_numbers(self.words, features.shape[0], features.dtype)


def moved(index: Index, offset: Float[Array, " d"]) -> Index:
    """The index of parameters `theta`, if it has any, that are larger by `offset`."""
    fields: Any = index
    return fields._replace(theta=fields.theta + offset) if hasattr(index, "theta") else index


def random_numbers(words: UInt32[Rows, " 2"], count: int, dtype: np.dtype) -> Float[Rows, " k"]:
    """Numbers from [0, 1) that follow from the bits of a key, mixed as in MurmurHash3: the same on
    the host and in programs, in fewer steps than a decision would notice.
    """
    numpy = np if isinstance(words, np.ndarray) else jnp
    places = numpy.arange(count, dtype=np.uint32)
    with np.errstate(over="ignore"):
        bits = words[0] ^ (words[1] + places * np.uint32(0x9E3779B9))
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            bits = (bits ^ (bits >> np.uint32(shift))) * np.uint32(factor)
    bits = bits ^ (bits >> np.uint32(16))
    return bits.astype(dtype) * np.asarray(2.0**-32, dtype)


def key_words(key: Key[Array, ""]) -> UInt32[Array, " 2"]:
    """The last 64 bits of a key."""
    return jax.random.key_data(key)[..., -2:]


class AbstractAgent(eqx.Module, Serializable):
    """Takes the action of the highest index; what it knows is the evidence."""

    likelihood: eqx.AbstractVar[AbstractLikelihood]

    @property
    @abc.abstractmethod
    def dim(self) -> int | None:
        """Number of parameters d; None if any number will do."""

    @abc.abstractmethod
    def index(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Index, Bool[Array, ""]]:
        """The index to maximize at one decision, and whether it failed.

        Args:
            key: Of the random numbers.
            evidence: What the task has shown so far.

        Returns:
            A function of the features of the actions, as a named tuple of arrays, and whether it
            failed.
        """

    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
        """Parameters from the agent's posterior, and whether that failed.

        Args:
            key: Of the random numbers.
            evidence: What the task has shown so far.

        Returns:
            Parameters (d,), and whether they failed.

        Raises:
            ValueError: The agent infers no parameters.
        """
        raise ValueError(
            f"`posterior`: expected an agent that infers parameters, got {type(self).__name__}; "
            "use a prior, a sampler, LinUCB or EpsilonGreedy"
        )

    def moments(self) -> Gaussian:
        """About the mean and covariance of the parameters before any data, by which rows of a long
        history are approximated; of order one unless the agent knows better.

        Returns:
            A Gaussian of d parameters.
        """
        dim = self.dim or 1
        return Gaussian(on_device(np.zeros(dim)), on_device(np.eye(dim)))


class ThompsonSampling(AbstractAgent):
    """Acts as if a draw from the posterior were the truth: Algorithm 3.

    TS, TunedTS, MixTS, DPS and DiffTS are this agent with different samplers.

    Args:
        sampler: Any sampler; that of a prior is `best_sampler(prior)`.
        likelihood: How rewards arise from parameters.

    References:
        Kveton et al. (2024), Section 5, Algorithm 3.
    """

    sampler: AbstractSampler
    likelihood: AbstractLikelihood

    def __init__(self, sampler: object, likelihood: object) -> None:
        fix = "for a prior pass best_sampler(prior)"
        self.sampler = _checked_kind("sampler", sampler, AbstractSampler, fix)  # type: ignore[type-abstract]
        self.likelihood = _checked_likelihood(likelihood)

    @property
    def dim(self) -> int:
        return self.sampler.prior.dim

    def moments(self) -> Gaussian:
        return self.sampler.prior.moments()

    def index(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Index, Bool[Array, ""]]:
        theta, failed = self.draw(key, evidence)
        kind: Any = LinearIndex
        if isinstance(self.likelihood, Response):
            kind = _response_index(self.likelihood.function)
        return kind(theta), failed

    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
        theta, info = self.sampler.tempered_draw(key, evidence)
        return theta, info.failed


class AbstractGaussianAgent(AbstractAgent):
    """An agent that infers with a Gaussian prior: exactly where rewards are linear, by Laplace's
    approximation elsewhere.
    """

    prior: eqx.AbstractVar[GaussianPrior]

    @property
    def dim(self) -> int:
        return self.prior.dim

    def moments(self) -> Gaussian:
        return self.prior.moments()

    def posterior(self, evidence: AbstractEvidence) -> tuple[Gaussian, Bool[Array, ""]]:
        """The posterior, and whether it could not be found."""
        posterior, log_evidence = evidence.condition(self.prior.moments())
        return posterior, jnp.isnan(log_evidence)

    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
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

    def __init__(self, prior: object, likelihood: object, *, width: float = 2.0) -> None:
        self.prior, self.likelihood = _checked_parts(prior, likelihood)
        self.width = positive("width", width, "pass a number of standard deviations, such as 2")

    def validate(self) -> None:
        super().validate()
        positive("width", self.width)

    def index(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[UpperBound, Bool[Array, ""]]:
        posterior, failed = self.posterior(evidence)
        return UpperBound(posterior.mean, posterior.cov, self.width), failed


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

    def __init__(self, prior: object, likelihood: object, *, epsilon: float = 0.05) -> None:
        self.prior, self.likelihood = _checked_parts(prior, likelihood)
        self.epsilon = positive("epsilon", epsilon, "pass a probability, such as 0.05")
        if self.epsilon > 1:
            raise ValueError(f"`epsilon`: expected a probability, got {epsilon:g}; try 0.05")

    def validate(self) -> None:
        super().validate()
        if not 0 < float(self.epsilon) <= 1:
            raise ValueError(f"`epsilon`: expected a probability, got {self.epsilon}")

    def index(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[GreedyOrRandom, Bool[Array, ""]]:
        explore_key, random_key = jax.random.split(key)
        posterior, failed = self.posterior(evidence)
        explore = jax.random.bernoulli(explore_key, self.epsilon).astype(posterior.mean.dtype)
        return GreedyOrRandom(posterior.mean, explore, key_words(random_key)), failed


class Uniform(AbstractAgent):
    """Any action, with equal probability.

    Args:
        likelihood: How rewards arise; the agent does not use it.
        dim: Number of parameters d, which a `Bandit` needs; None if any number will do.
    """

    likelihood: AbstractLikelihood
    num_parameters: int | None = eqx.field(static=True)

    def __init__(self, likelihood: object, *, dim: int | None = None) -> None:
        self.likelihood = _checked_likelihood(likelihood)
        self.num_parameters = None if dim is None else positive_int("dim", dim)

    @property
    def dim(self) -> int | None:
        return self.num_parameters

    def index(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[RandomIndex, Bool[Array, ""]]:
        return RandomIndex(key_words(key)), jnp.array(False)


def as_agent(
    prior: object, likelihood: object, temperature: ArrayLike | None = None
) -> AbstractAgent:
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
        prior = best_sampler(
            prior, likelihood=likelihood if isinstance(likelihood, AbstractLikelihood) else None
        )
    if not isinstance(prior, AbstractSampler):
        fix = "fit a prior to the parameters of past tasks, or start from GaussianPrior(mean, cov)"
        if isinstance(prior, AbstractLikelihood):
            fix = "the prior is the first argument, and the likelihood the second"
        elif hasattr(prior, "bandit"):
            fix = "start its bandits with model.bandit(), or pass model.prior"
        elif isinstance(prior, str | Path):
            fix = "read the file with dp.load, and start bandits of a model with its `bandit`"
        raise ValueError(
            f"`prior`: expected a prior, a sampler or an agent, got {kind_of(prior)}; {fix}"
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


def _checked_likelihood(likelihood: object) -> AbstractLikelihood:
    fix = "pass Linear(noise_std=...), Logistic() or Poisson()"
    return _checked_kind("likelihood", likelihood, AbstractLikelihood, fix)  # type: ignore[type-abstract]


def _checked_parts(prior: object, likelihood: object) -> tuple[GaussianPrior, AbstractLikelihood]:
    """A Gaussian prior, and a likelihood of phi' theta, whose bounds and means can be computed."""
    gaussian = _checked_kind("prior", prior, GaussianPrior, "pass GaussianPrior(mean, cov)")
    if isinstance(likelihood, Response):
        raise ValueError(
            "`likelihood`: expected one that is linear in the parameters, got Response; use "
            "Thompson sampling, which needs only draws"
        )
    return gaussian, _checked_likelihood(likelihood)


def _checked_kind(name: str, value: object, kind: type[Kind], fix: str) -> Kind:
    if not isinstance(value, kind):
        wanted = kind.__name__.removeprefix("Abstract").lower()
        raise ValueError(f"`{name}`: expected a {wanted}, got {kind_of(value)}; {fix}")
    return value
