"""Evidence that fades, for tasks that drift: what it weighs halves again and again."""

import datetime
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from ..checks import positive
from ..evidence.base import AbstractEvidence
from ..partition import Structure, partition
from .updates import MAX_PROGRAMS, State

MOST_HALVINGS = 100.0  # beyond, nothing is left in either precision


@dataclass(frozen=True)
class Forgetting:
    """How fast evidence fades: a reward counts 2^(-age / half_life) times.

    Attributes:
        half_life: In decisions of the bandit, or in seconds.
        in_seconds: Which of the two.
    """

    half_life: float
    in_seconds: bool

    @staticmethod
    def of(half_life: Any) -> "Forgetting":
        """From a number of decisions, or a `datetime.timedelta`.

        Raises:
            ValueError: It is neither, or not positive.
        """
        in_seconds = isinstance(half_life, datetime.timedelta)
        number = half_life.total_seconds() if in_seconds else half_life
        fix = "pass a number of decisions, such as 500, or datetime.timedelta(days=7)"
        positive("half_life", number, fix)
        return Forgetting(float(number), in_seconds)

    def now(self, num_decisions: int) -> float:
        """The moment, in the units of the half-life."""
        return time.time() if self.in_seconds else float(num_decisions)

    def temperature(self, before: float, now: float) -> float:
        """What evidence of one moment is tempered by at a later one; 1 if the clock went back."""
        return float(np.exp2(np.clip((now - before) / self.half_life, 0.0, MOST_HALVINGS)))

    def faded(self, state: State, now: float) -> State:
        """What is left of the evidence at a later moment."""
        temperature = self.temperature(state.moment, now)
        if temperature == 1.0:
            return state
        leaves = fade_program(state.structure)(state.leaves, temperature)
        return state.with_leaves(leaves)._replace(moment=now)


@functools.lru_cache(maxsize=MAX_PROGRAMS)
def fade_program(structure: Structure) -> Callable[..., list[Any]]:
    """Counts evidence of this structure less."""

    @jax.jit
    def fade(leaves: list[Any], temperature: Float[Array, ""]) -> list[Any]:
        evidence: AbstractEvidence = structure.combine(leaves)
        return partition(evidence.temper(temperature))[0]

    return fade
