"""Where the random numbers of decisions come from.

They follow from a seed, the run and the number of the decision in it, by `stream_keys` and
`decision_key`. So a `Bandit` and run 0 of `simulate` with the same seed and the same history decide
alike, and decisions taken in a batch are those taken one by one.
"""

import secrets
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Integer, Key

from ..threefry import fold_in

SEED_BITS = 63


class Streams(NamedTuple):
    """Independent sources of randomness of one run."""

    environment: Key[Array, ""]  # parameters, actions and rewards
    decisions: Key[Array, ""]
    propensities: Key[Array, ""]


def stream_keys(seed: int, run: int | Integer[Array, ""]) -> Streams:
    """The streams of a run. All bits of the seed count, in both precisions."""
    return Streams(*jax.random.split(jax.random.fold_in(seed_key(seed), run), 3))


def seed_key(seed: int) -> Key[Array, ""]:
    """The key of a seed below 2**63; those below 2**32 are JAX's own."""
    high, low = divmod(seed, 2**32)
    key = jax.random.key(low)
    return jax.random.fold_in(key, np.uint32(high)) if high else key


def decision_key(stream: Key[Array, ""], number: int | Integer[Array, ""]) -> Key[Array, ""]:
    """The key of a decision, numbered from 0 within its run."""
    return fold_in(stream, number)


def checked_seed(seed: Any) -> int:
    """`seed` as an integer from 0 to 2**63 - 1."""
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if not whole or not 0 <= seed < 2**SEED_BITS:
        raise ValueError(f"`seed`: expected an integer from 0 to 2**63 - 1, got {seed!r}; try 0")
    return int(seed)


def fresh_seed() -> int:
    """A seed that no other process has."""
    return secrets.randbits(SEED_BITS)
