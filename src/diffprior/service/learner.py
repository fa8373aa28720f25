"""Rewards: joined to their decisions, learned once, or kept and marked when they come too late."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from .catalog import Version
from .errors import ServiceError, not_found
from .replies import decision_reply, reward_reply
from .requests import Change, Decide, Request, Reward, Settle
from .schema import decisions, observations, rewards, tasks
from .settings import check_reward
from .tasks import SNAPSHOT_EVERY, TaskState, current_state, write_snapshots
from .transaction import Transaction

Row = dict[str, Any]


class Learner:
    """What one transaction learns of its tasks, which it has locked."""

    def __init__(self, transaction: Transaction) -> None:
        self._in = transaction
        self._tasks: dict[int, Row] = {}
        self._states: dict[tuple[int, int], TaskState] = {}
        self._snapshots: list[TaskState] = []

    def tasks_of(self, requests: Sequence[Request]) -> set[int]:
        """Ids of the tasks that these requests are about."""
        ids = [r.decision_id for r in requests if isinstance(r, Reward | Change)]
        query = sa.select(decisions.c.task_id).where(decisions.c.id.in_(ids))
        found = set(self._in.connection.execute(query).scalars()) if ids else set()
        limits = [r.limit for r in requests if isinstance(r, Settle)]
        due = _due(self._in.now).with_only_columns(decisions.c.task_id).limit(sum(limits))
        return found | set(self._in.connection.execute(due).scalars()) if limits else found

    def begin(self, rows: dict[int, Row]) -> None:
        """These tasks are locked now."""
        self._tasks = rows

    def state(self, task: Row, version: Version) -> TaskState:
        """What is known of a task, this transaction included."""
        key = (task["id"], version.version)
        state = self._states.get(key)
        if state is None or state.num_learned < task["num_learned"]:
            about = (task["id"], task["seed"], task["num_learned"])
            state = current_state(self._in.connection, self._in.cache, version, *about)
            self._states[key] = state
        return state

    def states(self) -> list[TaskState]:
        """What is known at the end."""
        return list(self._states.values())

    def write(self) -> None:
        """Write counters of tasks and snapshots."""
        if self._tasks:
            update = (
                tasks.update()
                .where(tasks.c.id == sa.bindparam("task"))
                .values(num_decisions=sa.bindparam("decided"), num_learned=sa.bindparam("learned"))
            )
            values = [
                {"task": r["id"], "decided": r["num_decisions"], "learned": r["num_learned"]}
                for r in self._tasks.values()
            ]
            self._in.connection.execute(update, values)
        write_snapshots(self._in.connection, self._in.database, self._snapshots)

    def serve(self, request: Request) -> Any:
        """Serve a request that is not a decision."""
        if isinstance(request, Reward):
            return self._reward(request)
        if isinstance(request, Change):
            return self._change(request)
        assert isinstance(request, Settle) and not isinstance(request, Decide)
        return self._settle(request)

    def _decision(self, decision_id: str, models: Any) -> tuple[Row, Version]:
        query = sa.select(decisions).where(decisions.c.id == decision_id)
        row = self._in.connection.execute(query).mappings().one_or_none()
        task = self._tasks.get(row["task_id"]) if row else None
        if row is None or task is None or (models is not None and task["model"] not in models):
            raise not_found("decision_id", decision_id)
        return dict(row), self._in.catalog.version(task["model"], row["version"])

    def _reward(self, request: Reward) -> Row:
        row, version = self._decision(request.decision_id, request.models)
        before = self._rewards_of([row["id"]])[row["id"]]
        same = next((r for r in before if r["reward_id"] == request.reward_id), None)
        if same is not None:
            return self._repeated(row, same, request)
        try:
            check_reward(version.likelihood, request.value)
        except ValueError as error:
            raise ServiceError(422, str(error)) from error
        if row["status"] == "deferred":
            raise ServiceError(409, "the decision is deferred; activate it, then reward it")
        expired = row["expires"] is not None and self._in.now > row["expires"]
        late = row["settled"] or expired
        at_once = version.settings.aggregation == "first"
        if not late and at_once:
            self._observe(row, version, request.value, "reward")
        self._in.connection.execute(
            rewards.insert().values(
                decision_id=row["id"],
                reward_id=request.reward_id,
                number=len(before),
                value=request.value,
                late=late,
                received=self._in.now,
            )
        )
        if late:
            ignored = row["status"] == "cancelled" or not expired
            return reward_reply(row["id"], "ignored" if ignored else "late")
        return reward_reply(row["id"], "learned" if at_once else "waiting")

    def _repeated(self, row: Row, same: Row, request: Reward) -> Row:
        if same["value"] != request.value:
            raise ServiceError(
                409,
                f"`reward`: decision {row['id']!r} has the reward {same['value']:g} under this "
                "reward_id; pass another reward_id for a further reward",
            )
        expired = row["expires"] is not None and same["received"] > row["expires"]
        status = "late" if expired else "ignored" if same["late"] else ""
        return reward_reply(row["id"], status or ("learned" if row["settled"] else "waiting"))

    def _change(self, request: Change) -> Row:
        row, version = self._decision(request.decision_id, request.models)
        if row["status"] == request.status:
            return decision_reply(row)
        if row["status"] == "cancelled" or row["settled"]:
            state = "cancelled" if row["status"] == "cancelled" else "learned or expired"
            raise ServiceError(409, f"the decision is {state} already; it stays so")
        wait = version.settings.reward_wait
        if request.status == "active":
            row |= {"status": "active", "expires": None if wait is None else self._in.now + wait}
        else:
            row |= {"status": "cancelled", "settled": True}
        changed = {name: row[name] for name in ("status", "expires", "settled")}
        where = decisions.c.id == row["id"]
        self._in.connection.execute(decisions.update().where(where).values(**changed))
        return decision_reply(row)

    def _settle(self, request: Settle) -> int:
        """End the wait of decisions that are due; how many there were."""
        query = _due(self._in.now).where(decisions.c.task_id.in_(list(self._tasks)))
        due = [
            dict(row) for row in self._in.connection.execute(query.limit(request.limit)).mappings()
        ]
        given = self._rewards_of([row["id"] for row in due])
        for row in due:
            version = self._in.catalog.version(self._tasks[row["task_id"]]["model"], row["version"])
            on_time = [r["value"] for r in given[row["id"]] if not r["late"]]
            value = _aggregate(version.settings.aggregation, on_time)
            source = "reward" if on_time else "default"
            value = version.settings.default_reward if value is None else value
            try:
                self._observe(row, version, value, source)
            except ServiceError:  # a sum outside the support: the wait is over all the same
                self._observe(row, version, None, source)
        return len(due)

    def _observe(self, row: Row, version: Version, value: float | None, source: str) -> None:
        """Settle a decision, and learn from it if there is a reward."""
        task = self._tasks[row["task_id"]]
        if value is not None:
            table = np.frombuffer(row["features"]).reshape(row["num_actions"], -1)
            phi = table[row["taken"]]
            state = self.state(task, version).learn(version, phi, value)
            self._states[task["id"], version.version] = state
            self._in.connection.execute(
                observations.insert().values(
                    task_id=task["id"],
                    number=task["num_learned"],
                    decision_id=row["id"],
                    features=phi.tobytes(),
                    reward=value,
                    source=source,
                    learned=self._in.now,
                )
            )
            task["num_learned"] += 1
            if task["num_learned"] % SNAPSHOT_EVERY == 0:
                self._snapshots.append(state)
        row["settled"] = True
        where = decisions.c.id == row["id"]
        self._in.connection.execute(decisions.update().where(where).values(settled=True))

    def _rewards_of(self, ids: list[str]) -> dict[str, list[Row]]:
        query = sa.select(rewards).where(rewards.c.decision_id.in_(ids)).order_by(rewards.c.number)
        found = defaultdict(list)
        for row in self._in.connection.execute(query).mappings():
            found[row["decision_id"]].append(dict(row))
        return found


def _due(now: float) -> Any:
    """Decisions whose wait is over, longest first."""
    return (
        sa.select(decisions)
        .where(decisions.c.settled.is_(False), decisions.c.expires <= now)
        .where(decisions.c.status == "active")
        .order_by(decisions.c.expires, decisions.c.id)
    )


def _aggregate(aggregation: str, values: list[float]) -> float | None:
    """One reward from those that came in time; None if there are none."""
    if not values:
        return None
    return {"first": values[0], "last": values[-1], "sum": sum(values)}[aggregation]
