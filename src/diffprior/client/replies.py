"""What the service answers, typed."""

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Decision:
    """A decision of the service.

    Args:
        decision_id: What its reward is told by.
        action: A row of the features, or a name of the actions; with `top_k` a list, best first.
        propensity: How likely the action was, estimated from draws; None where there are none.
        propensity_se: Standard error of `propensity`.
        model_version: The version of the model that decided.
        expires: Until when its reward is waited for, in seconds since 1970; None for ever.
        status: active, deferred or cancelled.
        failed: Whether the draw failed, so that the action is random.
        recommended: In shadow mode, what the service would have taken, where that differs.
    """

    decision_id: str
    action: Any
    propensity: float | None
    propensity_se: float | None
    model_version: int
    expires: float | None
    status: str
    failed: bool
    recommended: Any = None

    @staticmethod
    def of(reply: dict[str, Any]) -> "Decision":
        """From `reply`, the JSON of the service; fields unknown here are left out."""
        names = {field.name for field in fields(Decision)}
        return Decision(**{name: value for name, value in reply.items() if name in names})


class CallError(Exception):
    """A call that the service refused or did not answer.

    Attributes:
        status: The HTTP status, None if there was no answer.
        message: What the service said, with the fix.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.message, self.status = message, status
