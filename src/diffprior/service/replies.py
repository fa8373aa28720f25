"""What callers are told, made from rows of the log, so that a repeated call hears the same."""

import json
from typing import Any


def decision_reply(row: dict[str, Any]) -> dict[str, Any]:
    """The reply to a decision."""
    names = json.loads(row["names"]) if row["names"] else None
    ranking = json.loads(row["ranking"])

    def label(action: int) -> Any:
        return names[action] if names else action

    shown = [label(action) for action in ranking]
    reply = {
        "decision_id": row["id"],
        "action": shown if row["top_k"] else label(row["taken"]),
        "propensity": row["propensity"],
        "propensity_se": row["propensity_se"],
        "model_version": row["version"],
        "expires": row["expires"],
        "status": row["status"],
        "failed": row["failed"],
    }
    if row["taken"] != ranking[0]:  # the caller's own action was taken
        reply["recommended"] = shown[0]
    return reply


def reward_reply(decision_id: str, status: str) -> dict[str, Any]:
    """The reply to a reward: learned, waiting (for the end of the wait), late or ignored."""
    return {"decision_id": decision_id, "status": status}
