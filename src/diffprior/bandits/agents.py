"""Agents turn draws into decisions: the contract, and Thompson sampling (Algorithm 3)."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from ..checks import on_device
from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..files.base import Serializable
from ..gaussian import Gaussian
from ..samplers.base import AbstractSampler


class Choice(NamedTuple):
    """What to maximize, minus infinity where an action is not allowed and in random order if the
    index failed; the index of every action; whether it failed."""

    preferences: Float[Array, " k"]
    values: Float[Array, " k"]
    failed: Bool[Array, ""]


class AbstractAgent(eqx.Module, Serializable):
    """Picks the action of the highest index; what it knows is the evidence."""

    likelihood: eqx.AbstractVar[AbstractLikelihood]

    @property
    @abc.abstractmethod
    def dim(self) -> int | None:
        """Number of parameters d; None if any number will do."""

    @abc.abstractmethod
    def index(
        self, key: Key[Array, ""], evidence: AbstractEvidence, features: Float[Array, "k d"]
    ) -> tuple[Float[Array, " k"], Bool[Array, ""]]:
        """What to maximize, in units of phi' theta (g is increasing), and whether it failed.

        Args:
            key: Of the random numbers.
            evidence: What the task has shown so far.
            features: Feature vectors of the actions (k, d).

        Returns:
            One number for each action (k,), of which the highest is chosen, and whether it failed.
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
        """
        raise ValueError(
            f"`posterior`: expected an agent that infers parameters, got {type(self).__name__}; "
            "use a prior, a sampler, LinUCB or EpsilonGreedy"
        )

    def moments(self) -> Gaussian:
        """About the mean and covariance of the parameters before any data, by which rows of a long
        history are approximated; of order one unless the agent knows better.

        Returns:
            A Gaussian of d parameters, or None.
        """
        dim = self.dim or 1
        return Gaussian(on_device(np.zeros(dim)), on_device(np.eye(dim)))

    def init(self, dim: int, capacity: int = 0) -> AbstractEvidence:
        """What the agent knows at first, with room for `capacity` rounds in compiled programs.

        Args:
            dim: Number of parameters d.
            capacity: Rows that compiled programs may add.

        Returns:
            Evidence of no observations.
        """
        return self.likelihood.empty(dim, capacity)

    def choose(
        self,
        key: Key[Array, ""],
        evidence: AbstractEvidence,
        features: Float[Array, "k d"],
        mask: Bool[Array, " k"],
    ) -> Choice:
        """Preferences among the allowed actions; random ones, and a flag, if the index failed.

        Args:
            key: Of the random numbers.
            evidence: What the task has shown so far.
            features: Feature vectors of the actions (k, d).
            mask: Which actions are allowed (k,).

        Returns:
            Preferences, the index of every action, and whether it failed.
        """
        index, failed = self.index(key, evidence, features)
        failed = failed | ~jnp.all(jnp.isfinite(index))
        usable = jnp.where(failed, _random_order(key, index), index)
        return Choice(jnp.where(mask, usable, -jnp.inf), index, failed)

    def act(
        self, key: Key[Array, ""], evidence: AbstractEvidence, features: Float[Array, "k d"]
    ) -> tuple[Int[Array, ""], Bool[Array, ""]]:
        """One action, and whether the draw behind it failed (then the action is random).

        Args:
            key: Of the random numbers.
            evidence: What the task has shown so far.
            features: Feature vectors of the actions (k, d).

        Returns:
            The number of the action, and whether its draw failed.
        """
        allowed = jnp.ones(features.shape[0], bool)
        choice = self.choose(key, evidence, features, allowed)
        return jnp.argmax(choice.preferences), choice.failed

    def update(
        self, evidence: AbstractEvidence, phi: Float[Array, " d"], y: Float[Array, ""]
    ) -> AbstractEvidence:
        """What the agent knows after reward `y` for features `phi`; unchecked.

        Args:
            evidence: What the agent knew.
            phi: Features of the action taken (d,).
            y: What it paid.

        Returns:
            What it knows now.
        """
        return evidence.add(phi[None], y[None], jnp.ones_like(y)[None])


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

    def __init__(self, sampler: Any, likelihood: Any) -> None:
        fix = "for a prior pass best_sampler(prior)"
        self.sampler = checked_kind("sampler", sampler, AbstractSampler, fix)
        self.likelihood = checked_likelihood(likelihood)

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.sampler.prior.dim

    def moments(self) -> Gaussian:
        """Those of the prior."""
        return self.sampler.prior.moments()

    def index(
        self, key: Key[Array, ""], evidence: AbstractEvidence, features: Float[Array, "k d"]
    ) -> tuple[Float[Array, " k"], Bool[Array, ""]]:
        """phi' theta for one draw of theta."""
        theta, failed = self.draw(key, evidence)
        return features @ theta, failed

    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
        """One draw of the sampler, at its temperature."""
        theta, info = self.sampler.tempered_draw(key, evidence)
        return theta, info.failed


def _random_order(key: Key[Array, ""], like: Float[Array, " k"]) -> Float[Array, " k"]:
    """A random number for each action, from the bits of the key: mixed as in MurmurHash3, in fewer
    steps than a decision that does not fail would notice."""
    high, low = jax.random.key_data(key)[..., -2:]
    bits = high ^ (low + jnp.arange(like.shape[0], dtype=jnp.uint32) * jnp.uint32(0x9E3779B9))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ (bits >> jnp.uint32(shift))) * jnp.uint32(factor)
    return (bits ^ (bits >> jnp.uint32(16))).astype(like.dtype)


def checked_likelihood(likelihood: Any) -> AbstractLikelihood:
    """`likelihood` as one, or a message that says what to pass."""
    fix = "pass Linear(noise_std=...), Logistic() or Poisson()"
    return checked_kind("likelihood", likelihood, AbstractLikelihood, fix)


def checked_kind(name: str, value: Any, kind: type, fix: str) -> Any:
    """`value` as an instance of `kind`."""
    if not isinstance(value, kind):
        wanted = kind.__name__.removeprefix("Abstract").lower()
        raise ValueError(f"`{name}`: expected a {wanted}, got {kind_of(value)}; {fix}")
    return value


def kind_of(value: Any) -> str:
    """What a message calls a value that is of the wrong kind."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
