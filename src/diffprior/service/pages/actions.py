"""The actions of a decision, as the log has them."""

import json
from typing import Any

import numpy as np
from jaxtyping import Bool, Float


def action_name(names: str | None, action: int) -> str:
    """What the caller called an action, or its number."""
    return str(json.loads(names)[action]) if names else f"action {action}"


def action_features(row: Any) -> Float[np.ndarray, "k d"]:
    """Features of all actions of a decision."""
    return np.frombuffer(row.features).reshape(row.num_actions, -1)


def allowed_actions(row: Any) -> Bool[np.ndarray, " k"]:
    """Which of them were allowed."""
    if row.mask is None:
        return np.ones(row.num_actions, bool)
    return np.frombuffer(row.mask, bool)
