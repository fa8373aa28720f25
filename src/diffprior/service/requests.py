"""What the engine is asked to do, checked against the model; NumPy arrays instead of JSON."""

import secrets
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import ServiceError


@dataclass
class Decide:
    """Choose an action for a task."""

    model: str
    task: str
    features: np.ndarray
    names: list[str] | None = None
    mask: np.ndarray | None = None
    top_k: int | None = None
    decision_id: str = field(default_factory=lambda: secrets.token_hex(16))
    taken: int | None = None
    deferred: bool = False
    token: str | None = None
    future: Future = field(default_factory=Future)

    def check(self, dim: int) -> None:
        """Refuse features, a mask or a count that do not fit the model.

        Raises:
            ServiceError: With status 422 and the fix.
        """
        k = len(self.features)
        if self.features.ndim != 2 or self.features.shape[1] != dim or k == 0:
            raise ServiceError(
                422,
                f"`features`: expected one row of {dim} numbers for each action, "
                f"got shape {self.features.shape}; use the features that the model learned from",
            )
        if not np.all(np.isfinite(self.features)) or np.max(np.abs(self.features)) > 1e12:
            raise ServiceError(422, "`features`: expected numbers of moderate size; rescale them")
        if self.mask is not None and (len(self.mask) != k or not np.any(self.mask)):
            raise ServiceError(
                422, f"`mask`: expected {k} booleans, one of them true; allow an action"
            )
        allowed = k if self.mask is None else int(np.sum(self.mask))
        if self.top_k is not None and not 1 <= self.top_k <= allowed:
            raise ServiceError(
                422, f"`top_k`: expected 1 to {allowed}, the allowed actions, got {self.top_k}"
            )
        if self.taken is not None and not 0 <= self.taken < k:
            raise ServiceError(422, "`action_taken`: expected one of the actions; check it")


@dataclass
class Reward:
    """What a decision earned."""

    decision_id: str
    value: float
    reward_id: str = ""
    models: Any = None
    future: Future = field(default_factory=Future)


@dataclass
class Change:
    """Activate or cancel a decision."""

    decision_id: str
    status: str
    models: Any = None
    future: Future = field(default_factory=Future)


@dataclass
class Settle:
    """Learn what is due: default rewards, and sums and last rewards whose wait is over."""

    limit: int = 500
    future: Future = field(default_factory=Future)


Request = Decide | Reward | Change | Settle
