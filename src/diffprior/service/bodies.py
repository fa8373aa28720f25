"""JSON that comes in, checked by its shape; what fits the model is checked by the engine."""

from typing import Annotated, Any

import numpy as np
import pydantic

from .requests import Decide
from .settings import Settings

MAX_ACTIONS = 1_000
MAX_NUMBERS = 100_000  # features of one decision
MAX_BATCH = 256

Name = Annotated[  # control characters are for no database and no log
    str, pydantic.StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,200}$")
]
Id = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,100}$")]
Finite = Annotated[float, pydantic.Field(allow_inf_nan=False, ge=-1e12, le=1e12)]
Vector = Annotated[list[Finite], pydantic.Field(min_length=1, max_length=10_000)]


class Body(pydantic.BaseModel, extra="forbid"):
    """A body without fields that nobody reads."""


class DecisionBody(Body):
    """Actions to choose from: `features`, one row for each, or named `actions` with theirs."""

    features: Annotated[list[Vector], pydantic.Field(max_length=MAX_ACTIONS)] | None = None
    actions: Annotated[dict[Name, Vector], pydantic.Field(max_length=MAX_ACTIONS)] | None = None
    mask: Annotated[list[bool], pydantic.Field(max_length=MAX_ACTIONS)] | None = pydantic.Field(
        None, description="true where an action is allowed"
    )
    top_k: Annotated[int, pydantic.Field(ge=1, le=MAX_ACTIONS)] | None = pydantic.Field(
        None, description="rank so many actions instead of choosing one"
    )
    decision_id: Id | None = pydantic.Field(
        None, description="your own id: the same call again gets the same reply"
    )
    action_taken: Name | int | None = pydantic.Field(
        None, description="shadow mode: your action is taken and logged, ours beside it"
    )
    deferred: bool = pydantic.Field(False, description="wait for no reward until it is activated")

    @pydantic.model_validator(mode="after")
    def _one_kind(self) -> "DecisionBody":
        if (self.features is None) == (self.actions is None):
            raise ValueError("expected either `features` or `actions`; pass one of them")
        rows = self.rows()
        if not rows:
            raise ValueError("expected at least one action; pass its features")
        if len({len(row) for row in rows}) != 1:
            raise ValueError("expected as many features for each action; pad or mend the rows")
        if len(rows) * len(rows[0]) > MAX_NUMBERS:
            raise ValueError(f"expected at most {MAX_NUMBERS} features in all; send fewer actions")
        return self

    def rows(self) -> list[list[float]]:
        """Features of every action."""
        return list(self.actions.values()) if self.actions is not None else self.features or []

    def request(self, model: str, task: str, token: str | None) -> Decide:
        """The request for the engine."""
        names = None if self.actions is None else list(self.actions)
        request = Decide(
            model,
            task,
            np.asarray(self.rows(), np.float64),
            names=names,
            mask=None if self.mask is None else np.asarray(self.mask, bool),
            top_k=self.top_k,
            taken=self._taken(names),
            deferred=self.deferred,
            token=token,
        )
        if self.decision_id is not None:
            request.decision_id = self.decision_id
        return request

    def _taken(self, names: list[str] | None) -> int | None:
        taken: Any = self.action_taken
        if taken is None or isinstance(taken, int) and names is None:
            return taken
        return names.index(str(taken)) if names and str(taken) in names else -1


class TaskDecisionBody(DecisionBody):
    """A decision of a batch, with its task."""

    task: Name


class BatchBody(Body):
    """Decisions of many tasks."""

    decisions: Annotated[list[TaskDecisionBody], pydantic.Field(min_length=1, max_length=MAX_BATCH)]


class RewardBody(Body):
    """A reward. Further ones of the same decision carry a `reward_id` each."""

    reward: Finite
    reward_id: Id | None = None


class ModelBody(Body):
    """A version of a model: its settings, and its prior's file in base64."""

    prior: Annotated[str, pydantic.StringConstraints(max_length=64 * 2**20)]
    settings: Settings = pydantic.Field(default_factory=lambda: Settings.model_validate({}))
    share: Annotated[float, pydantic.Field(ge=0, le=1)] = 1.0


class ShareBody(Body):
    """The share of the tasks that a version serves."""

    share: Annotated[float, pydantic.Field(ge=0, le=1)]
