"""Agents turn draws into decisions: the contract, and Thompson sampling (Algorithm 3).

The random numbers of a decision follow from a seed, the run and the number of the decision in it,
by `stream_keys` and `decision_key`. So a `Bandit` and run 0 of `simulate` with the same seed and
the same history decide alike, and decisions taken in a batch are those taken one by one.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer, Key

from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..samplers.base import AbstractSampler


class Streams(NamedTuple):
    """Independent sources of randomness of one run."""

    world: Key[Array, ""]  # parameters, actions and rewards
    decisions: Key[Array, ""]
    propensities: Key[Array, ""]


def stream_keys(seed: int | Integer[Array, ""], run: int | Integer[Array, ""]) -> Streams:
    """The streams of a run."""
    return Streams(*jax.random.split(jax.random.fold_in(jax.random.key(seed), run), 3))


def decision_key(stream: Key[Array, ""], number: int | Integer[Array, ""]) -> Key[Array, ""]:
    """The key of a decision, numbered from 0 within its run."""
    return jax.random.fold_in(stream, number)


def checked_seed(seed: Any) -> int:
    """`seed` as a non-negative integer."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"`seed`: expected a non-negative integer, got {seed!r}; try 0")
    return int(seed)


class Choice(NamedTuple):
    """Actions, best first; the index of every action; whether that index could be computed."""

    actions: Int[Array, " top_k"]
    values: Float[Array, " k"]
    failed: Bool[Array, ""]


class AbstractAgent(eqx.Module):
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
        """What to maximise, in units of phi' theta (g is increasing), and whether it failed."""

    def init(self, dim: int, capacity: int = 0) -> AbstractEvidence:
        """What the agent knows at first, with room for `capacity` rounds in compiled programs."""
        return self.likelihood.empty(dim, capacity)

    def choose(
        self,
        key: Key[Array, ""],
        evidence: AbstractEvidence,
        features: Float[Array, "k d"],
        mask: Bool[Array, " k"],
        top_k: int = 1,
    ) -> Choice:
        """The best `top_k` of the allowed actions; random ones, and a flag, if the index failed."""
        index, failed = self.index(key, evidence, features)
        failed = failed | ~jnp.all(jnp.isfinite(index))
        usable = jnp.where(failed, _random_order(key, mask, index.dtype), index)
        ranked = jnp.where(mask, usable, -jnp.inf)
        return Choice(jax.lax.top_k(ranked, top_k)[1], index, failed)

    def act(
        self, key: Key[Array, ""], evidence: AbstractEvidence, features: Float[Array, "k d"]
    ) -> tuple[Int[Array, ""], Bool[Array, ""]]:
        """One action, and whether the draw behind it failed (then the action is random)."""
        allowed = jnp.ones(features.shape[0], bool)
        actions, _, failed = self.choose(key, evidence, features, allowed)
        return actions[0], failed

    def update(
        self, evidence: AbstractEvidence, phi: Float[Array, " d"], y: Float[Array, ""]
    ) -> AbstractEvidence:
        """What the agent knows after reward `y` for features `phi`; unchecked."""
        return evidence.add(phi[None], y[None], jnp.ones_like(y)[None])


class ThompsonSampling(AbstractAgent):
    """Acts as if a draw from the posterior were the truth: Algorithm 3.

    TS, TunedTS, MixTS, DPS and DiffTS are this agent with different samplers.
    """

    sampler: AbstractSampler
    likelihood: AbstractLikelihood

    def __init__(self, sampler: Any, likelihood: Any) -> None:
        self.sampler = checked_kind("sampler", sampler, AbstractSampler, "wrap a prior in `Exact`")
        self.likelihood = checked_likelihood(likelihood)

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.sampler.prior.dim

    def index(
        self, key: Key[Array, ""], evidence: AbstractEvidence, features: Float[Array, "k d"]
    ) -> tuple[Float[Array, " k"], Bool[Array, ""]]:
        """phi' theta for one draw of theta."""
        theta, info = self.sampler.tempered_draw(key, evidence)
        return features @ theta, info.failed


def _random_order(
    key: Key[Array, ""], mask: Bool[Array, " k"], dtype: jnp.dtype
) -> Float[Array, " k"]:
    """Allowed actions in turn, from one on that the bits of the key point to."""
    allowed = jnp.sum(mask, dtype=jnp.uint32)
    first = jax.random.key_data(key)[-1] % allowed
    place = jnp.cumsum(mask, dtype=jnp.uint32) - 1
    return -((place + allowed - first) % allowed).astype(dtype)


def checked_likelihood(likelihood: Any) -> AbstractLikelihood:
    """`likelihood` as one, or a message that says what to pass."""
    fix = "pass Linear(noise_std=...), Logistic() or Poisson()"
    return checked_kind("likelihood", likelihood, AbstractLikelihood, fix)


def checked_kind(name: str, value: Any, kind: type, fix: str) -> Any:
    """`value` as an instance of `kind`."""
    if not isinstance(value, kind):
        wanted = kind.__name__.removeprefix("Abstract")
        raise ValueError(f"`{name}`: expected a {wanted}, got {type(value).__name__}; {fix}")
    return value
