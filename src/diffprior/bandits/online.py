"""The common part of `Bandit` and `Items`: agent, settings, evidence that fades, and files."""

import datetime
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..checks import default_float
from ..encoders import Encoder
from ..evidence.base import AbstractLikelihood
from ..evidence.response import Response
from ..files.base import Serializable
from ._dispatch import check_not_forked
from .agents import AbstractAgent, as_agent, dim_of
from .decisions import checked_seed, fresh_seed
from .updates import Forgetting, State, checked_max_rows

MAX_ROWS = 1024  # in memory, by default


class AbstractOnline(Serializable):
    """Decides and learns one call at a time, NumPy in and out; arguments are as of `Bandit`."""

    def __init__(
        self,
        prior: object,
        likelihood: AbstractLikelihood | None,
        seed: int | None,
        temperature: ArrayLike | None,
        max_rows: int | None,
        half_life: ArrayLike | datetime.timedelta | None,
        encoder: Encoder | None,
    ) -> None:
        check_not_forked(type(self).__name__)
        self._agent = as_agent(prior, likelihood, temperature)
        self._dim = dim_of(self._agent)
        self._num_features = self._agent.likelihood.num_features(self._dim)
        if encoder is not None and encoder.dim != self._num_features:
            raise ValueError(
                f"`encoder`: expected {self._num_features} features, those of the likelihood, got "
                f"{encoder.dim}; pass the encoder of the logs that the prior was learned from"
            )
        self._encoder = encoder
        self._seed = seed_or_fresh(seed)
        self._max_rows = checked_max_rows(max_rows)
        if isinstance(self._agent.likelihood, Response):
            if max_rows not in (None, MAX_ROWS):
                raise ValueError(
                    f"`max_rows`: expected None, because rows of a response are not folded, got "
                    f"{max_rows}; leave it out: all rows are kept"
                )
            self._max_rows = None
        self._forgetting = None if half_life is None else Forgetting.of(half_life)
        self._moments = self._agent.moments()
        self._num_decisions = 0
        self._lock = threading.Lock()  # of the state that decisions read

    @property
    def agent(self) -> AbstractAgent:
        """The agent."""
        return self._agent

    @property
    def likelihood(self) -> AbstractLikelihood:
        """The likelihood of rewards."""
        return self._agent.likelihood

    @property
    def seed(self) -> int:
        """The seed of the random numbers."""
        return self._seed

    @property
    def num_decisions(self) -> int:
        """Decisions taken so far, each of a batch counted."""
        return self._num_decisions

    @property
    def _dtype(self) -> np.dtype:
        return default_float()

    def _present(self, state: State, num_decisions: int | None = None) -> State:
        """The faded state after so many decisions; by default, at this moment."""
        if self._forgetting is None:
            return state
        number = self._num_decisions if num_decisions is None else num_decisions
        return self._forgetting.faded(state, self._forgetting.now(number))

    @staticmethod
    def _encoded(argument: str, rows: object, encoder: Encoder | None) -> Any:
        """Features of raw rows (a table, a dict or several), or of an array, as it is unless
        features were learned.
        """
        is_raw = isinstance(rows, Mapping) or hasattr(rows, "columns")
        if isinstance(rows, list | tuple) and rows:
            is_raw = isinstance(rows[0], Mapping)
        if not is_raw:
            network = None if encoder is None else encoder.network
            return rows if network is None else network(rows)  # type: ignore[arg-type]
        if encoder is None:
            raise ValueError(
                f"`{argument}`: expected arrays, because there is no encoder, got raw rows; start "
                "from a model that was learned from a table, as in model.bandit()"
            )
        return encoder.encode(rows)

    @classmethod
    def file_hints(cls) -> dict[str, object]:
        return {
            "agent": AbstractAgent,
            "seed": int,
            "num_decisions": int,
            "max_rows": int | None,
            "half_life": float | None,
            "in_seconds": bool,
            "encoder": Encoder | None,
        }

    def file_fields(self) -> dict[str, object]:
        forgetting = self._forgetting
        return {
            "agent": self._agent,
            "seed": self._seed,
            "num_decisions": self._num_decisions,
            "max_rows": self._max_rows,
            "half_life": None if forgetting is None else forgetting.half_life,
            "in_seconds": forgetting is not None and forgetting.in_seconds,
            "encoder": self._encoder,
        }

    @staticmethod
    def _options(fields: dict[str, Any]) -> dict[str, Any]:
        """Arguments besides the agent, of fields that were read from a file."""
        if fields["num_decisions"] < 0:
            raise ValueError(
                f"`num_decisions`: expected none below 0, got {fields['num_decisions']}"
            )
        half_life = fields["half_life"]
        if half_life is not None and fields["in_seconds"]:
            half_life = datetime.timedelta(seconds=half_life)
        return {"half_life": half_life} | {k: fields[k] for k in ("seed", "max_rows", "encoder")}


def seed_or_fresh(seed: int | None) -> int:
    """A seed, checked, or a fresh one."""
    return fresh_seed() if seed is None else checked_seed(seed)
