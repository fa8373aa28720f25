"""Bandits in files and bytes: all that is needed to go on."""

import abc
import datetime
import math
import threading
from typing import Any, ClassVar

from ..checks import choice
from ..evidence.base import AbstractEvidence
from ..evidence.rows import capacity_for, small_room
from ..files.atomic import AnyPath, write_atomic
from ..files.base import Serializable, from_bytes, from_path, kinds_in, to_bytes
from .agents import AbstractAgent
from .choose import known_prior
from .forgetting import Forgetting
from .forking import refuse_after_fork
from .streams import checked_seed, fresh_seed
from .updates import State


class AbstractStoredBandit(abc.ABC, Serializable):
    """What a bandit keeps, and how it is kept. Version 2 of its files can forget."""

    file_version: ClassVar[int] = 2
    _agent: AbstractAgent
    _state: State
    _seed: int
    _num_decisions: int
    _max_rows: int | None
    _strained: bool
    _forgetting: Forgetting | None
    _lock: threading.Lock

    @property
    @abc.abstractmethod
    def evidence(self) -> AbstractEvidence:
        """What has been learned so far."""

    def to_bytes(self, *, prior: str = "whole") -> bytes:
        """All that is needed to go on, as bytes.

        Args:
            prior: "whole", or "digest" to name the prior instead of carrying it; who reads the
                bytes must then have the prior.

        Returns:
            What `from_bytes` reads, of one moment.

        Raises:
            ValueError: A class of one's own holds what cannot be kept, such as a function.
        """
        refuse_after_fork("save")
        choice("prior", prior, ("whole", "digest"))
        apart = known_prior(self._agent) if prior == "digest" else ()
        return to_bytes(self, apart)

    def save(self, path: AnyPath, *, prior: str = "whole") -> None:
        """Write all that is needed to go on to a file, whole or not at all.

        Args:
            path: Where to write; the folder must exist.
            prior: As of `to_bytes`.

        Raises:
            ValueError: A class of one's own holds what cannot be kept, such as a function.
            OSError: The file cannot be written; an old one is then as it was.
        """
        write_atomic(path, self.to_bytes(prior=prior))

    @classmethod
    def from_bytes(
        cls, blob: Any, *, seed: int | None = None, keep_seed: bool = False, prior: Any = None
    ) -> Any:
        """Read a bandit that `to_bytes` wrote; the options are those of `load`."""
        return from_bytes(blob, cls, *_options(seed, keep_seed, prior))

    @classmethod
    def load(
        cls, path: AnyPath, *, seed: int | None = None, keep_seed: bool = False, prior: Any = None
    ) -> Any:
        """Read a bandit that `save` wrote, in this version or an earlier one.

        Args:
            path: The file; it may come from anywhere, nothing in it is run.
            seed: As of a bandit; None for a fresh one, so that copies of a file explore on their
                own.
            keep_seed: Whether to keep the seed, for the very decisions that the saved bandit would
                have taken.
            prior: The prior that the file names by its digest.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is damaged, holds no bandit, or names another prior.
        """
        return from_path(path, cls, *_options(seed, keep_seed, prior))

    def __reduce__(self) -> Any:
        """What pickle and `copy` keep: the bytes, and classes whose modules must be imported."""
        return _copied, (type(self), self.to_bytes(), kinds_in(self))

    @classmethod
    def file_hints(cls) -> dict[str, Any]:
        """The fields that are kept, and what each may hold."""
        return {
            "agent": AbstractAgent,
            "evidence": AbstractEvidence,
            "seed": int,
            "num_decisions": int,
            "max_rows": int | None,
            "strained": bool,
            "half_life": float | None,
            "in_seconds": bool,
            "moment": float,
        }

    def file_fields(self) -> dict[str, Any]:
        """The fields that are kept, and what each holds, of one moment."""
        forgetting = self._forgetting
        with self._lock:
            state, num_decisions, strained = self._state, self._num_decisions, self._strained
        return {
            "agent": self._agent,
            "evidence": state.evidence,
            "seed": self._seed,
            "num_decisions": num_decisions,
            "max_rows": self._max_rows,
            "strained": strained,
            "half_life": None if forgetting is None else forgetting.half_life,
            "in_seconds": forgetting is not None and forgetting.in_seconds,
            "moment": state.moment,
        }

    @classmethod
    def upgrade(cls, fields: dict[str, Any], version: int) -> dict[str, Any]:
        """0.1.0 looked for no extreme observations; before version 2 nothing was forgotten."""
        later = {"strained": False, "half_life": None, "in_seconds": False, "moment": 0.0}
        return later | fields

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Any:
        """A bandit that goes on where another was."""
        _check_room(fields["evidence"], fields["max_rows"])
        make: Any = cls
        half_life = fields["half_life"]
        if half_life is not None and fields["in_seconds"]:
            half_life = datetime.timedelta(seconds=half_life)
        options = {name: fields[name] for name in ("seed", "max_rows")}
        bandit = make(fields["agent"], **options, half_life=half_life)
        evidence, num_decisions = fields["evidence"], fields["num_decisions"]
        if type(evidence) is not type(bandit.evidence) or evidence.dim != bandit.evidence.dim:
            raise ValueError("`evidence`: expected that of the agent's model, got another")
        if not math.isfinite(fields["moment"]):
            raise ValueError(f"`moment`: expected a finite number, got {fields['moment']}")
        if num_decisions < 0:
            raise ValueError(f"`num_decisions`: expected none below 0, got {num_decisions}")
        state = State.of(evidence, fields["max_rows"])
        bandit._state = state._replace(moment=fields["moment"])
        bandit._num_decisions = num_decisions
        bandit._strained = fields["strained"]
        return bandit


def _check_room(evidence: AbstractEvidence, max_rows: int | None) -> None:
    """Refuse room for far more rows than a file of this size would have been written with."""
    room = capacity_for(max_rows or 0)
    if not small_room(room, evidence.dim) and room > getattr(evidence, "capacity", room):
        raise ValueError(f"`max_rows`: expected as many as there is room for, got {max_rows}")


def _copied(cls: Any, blob: bytes, kinds: tuple[type, ...]) -> Any:
    return cls.from_bytes(blob, keep_seed=True)


def _options(
    seed: int | None, keep_seed: bool, prior: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Objects that a file may name by digest, and fields to replace in it."""
    given = () if prior is None else (prior,)
    if keep_seed and seed is None:
        return given, {}
    return given, {"seed": fresh_seed() if seed is None else checked_seed(seed)}
