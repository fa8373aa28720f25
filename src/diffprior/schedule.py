"""The forward process: how much of a clean sample is left at each stage (Eq. 4).

Stages run t = T, ..., 1 as in the paper, and `alpha_bar[0]` is 1: stage 0 is the clean sample.
Arrays with one entry per stage hold stage t at index t - 1. A schedule is host-side, float64 and
hashable, so that its coefficients are constants of a compiled program at full precision.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .checks import positive_int
from .files.base import Serializable

MAX_STAGES = 2**16


class Stages(NamedTuple):
    """Coefficients of one reverse step at stage t; stacked in the order t = T, ..., 1."""

    alpha_bar_before: Float[Array, "..."]  # of the stage being entered, t - 1
    weight_clean: Float[Array, "..."]
    weight_noisy: Float[Array, "..."]
    beta_tilde: Float[Array, "..."]
    snr: Float[Array, "..."]
    shift_scale: Float[Array, "..."]


@dataclass(frozen=True)
class Schedule(Serializable):
    """alpha_bar at stages 0 to T, and what Eqs. (13) and (14) derive from it.

    Args:
        alpha_bar: From 1 at stage 0 down to stage T (T + 1,).
    """

    max_bytes: ClassVar[int] = 2**20

    alpha_bar: tuple[float, ...]

    def __post_init__(self) -> None:
        values = np.asarray(self.alpha_bar, dtype=np.float64)
        if values.ndim != 1 or len(values) < 2 or values[0] != 1.0:
            raise ValueError(
                "`alpha_bar`: expected (1, alpha_bar_1, ..., alpha_bar_T) with T >= 1, "
                f"got {self.alpha_bar!r}; start it with 1"
            )
        if not (np.all(np.diff(values) < 0) and values[-1] > 0):
            raise ValueError(
                "`alpha_bar`: expected strictly decreasing positive numbers, "
                f"got {self.alpha_bar!r}; each stage must add noise and leave some signal"
            )

    @staticmethod
    def constant(num_stages: int = 100, alpha: float = 0.97) -> "Schedule":
        """The paper's schedule of `num_stages`: alpha_t = `alpha` at every stage.

        References:
            Kveton et al. (2024), Section 6.1.
        """
        _check_stages(num_stages)
        if not 0 < alpha < 1:
            raise ValueError(
                f"`alpha`: expected a number in (0, 1), got {alpha}; the paper has 0.97"
            )
        return Schedule(tuple(alpha**t for t in range(num_stages + 1)))

    @staticmethod
    def cosine(num_stages: int = 20, floor: float = 1e-4) -> "Schedule":
        """Squared cosine of `num_stages`, raised so that alpha_bar ends at `floor`.

        References:
            Nichol and Dhariwal (2021).
        """
        _check_stages(num_stages)
        if not 0 < floor < 1:
            raise ValueError(
                f"`floor`: expected a number in (0, 1), got {floor}; 1e-4 leaves next to no signal"
            )
        angle = (np.arange(num_stages + 1) / num_stages + 0.008) / 1.008 * math.pi / 2
        fraction = np.cos(angle) ** 2 / np.cos(angle[0]) ** 2
        return Schedule(tuple((floor + (1 - floor) * fraction).tolist()))

    @staticmethod
    def log_snr(num_stages: int = 20, highest: float = 9.0, lowest: float = -7.0) -> "Schedule":
        """log(alpha_bar / (1 - alpha_bar)) uniform from `highest` (t = 1) to `lowest` (t = T), with
        T = `num_stages`.

        A single stage is at `lowest`: a schedule ends in noise.
        """
        _check_stages(num_stages)
        if not highest > lowest:
            raise ValueError(
                f"`highest`: expected more than lowest = {lowest}, got {highest}; swap them"
            )
        log_snr = np.linspace(lowest, highest, num_stages)[::-1]
        return Schedule((1.0, *map(_sigmoid, log_snr.tolist())))

    def stride(self, num_stages: int) -> "Schedule":
        """A sub-grid of `num_stages` stages, at most T, evenly spread and ending at T."""
        positive_int("steps", num_stages)
        if num_stages > self.num_stages:
            raise ValueError(
                f"`steps`: expected at most the {self.num_stages} stages of the schedule, "
                f"got {num_stages}; ask for fewer or use a longer schedule"
            )
        kept = np.round(np.linspace(0, self.num_stages, num_stages + 1)).astype(int)
        return Schedule(tuple(self.alpha_bar[t] for t in kept))

    def __repr__(self) -> str:
        first, last = self.alpha_bar[1], self.alpha_bar[-1]
        return f"Schedule(num_stages={self.num_stages}, alpha_bar={first:.4g} to {last:.4g})"

    @property
    def num_stages(self) -> int:
        """T."""
        return len(self.alpha_bar) - 1

    def stages(self, dtype: jnp.dtype) -> Stages:
        """The coefficients of every reverse step, T first, ready for `lax.scan`.

        Args:
            dtype: Of the numbers.
        """
        columns = (self._alpha_bar[:-1], *(getattr(self, name) for name in Stages._fields[1:]))
        return Stages(*(jnp.asarray(column[::-1].copy(), dtype) for column in columns))

    @cached_property
    def _alpha_bar(self) -> np.ndarray:
        return np.asarray(self.alpha_bar, dtype=np.float64)

    @cached_property
    def alpha(self) -> np.ndarray:
        """alpha_t = alpha_bar_t / alpha_bar_{t-1}, one per stage."""
        return self._alpha_bar[1:] / self._alpha_bar[:-1]

    @cached_property
    def beta(self) -> np.ndarray:
        """beta_t = 1 - alpha_t, one per stage."""
        return (self._alpha_bar[:-1] - self._alpha_bar[1:]) / self._alpha_bar[:-1]

    @cached_property
    def beta_tilde(self) -> np.ndarray:
        """Variance of q(s_{t-1} | s_t, s_0), one per stage: Eq. (14). Zero at t = 1."""
        return (1 - self._alpha_bar[:-1]) / (1 - self._alpha_bar[1:]) * self.beta

    @cached_property
    def weight_clean(self) -> np.ndarray:
        """Weight of s_0 in the mean of q(s_{t-1} | s_t, s_0), one per stage: Eq. (14)."""
        return np.sqrt(self._alpha_bar[:-1]) * self.beta / (1 - self._alpha_bar[1:])

    @cached_property
    def weight_noisy(self) -> np.ndarray:
        """Weight of s_t in the mean of q(s_{t-1} | s_t, s_0), one per stage: Eq. (14)."""
        before = 1 - self._alpha_bar[:-1]
        return np.sqrt(self.alpha) * before / (1 - self._alpha_bar[1:])

    @cached_property
    def snr(self) -> np.ndarray:
        """Precision that s_t lends to s_0, alpha_bar_t / (1 - alpha_bar_t), one per stage."""
        return self._alpha_bar[1:] / (1 - self._alpha_bar[1:])

    @cached_property
    def shift_scale(self) -> np.ndarray:
        """Shift that s_t lends to s_0, per unit of s_t: sqrt(alpha_bar_t) / (1 - alpha_bar_t)."""
        return np.sqrt(self._alpha_bar[1:]) / (1 - self._alpha_bar[1:])


def _sigmoid(x: float) -> float:
    """As `scipy.special.expit`, which takes a fifth of a second to import."""
    return 1.0 / (1.0 + math.exp(-x)) if x > -30.0 else math.exp(x)


def _check_stages(num_stages: int) -> None:
    if positive_int("num_stages", num_stages) > MAX_STAGES:
        raise ValueError(
            f"`num_stages`: expected at most {MAX_STAGES}, got {num_stages}; some hundred will do"
        )
