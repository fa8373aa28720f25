"""Rewards: joined to their decisions, learned once, or stored as late."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import sqlalchemy as sa

from .metrics import Learned
from .models import Catalog, Version
from .requests import (
    Change,
    Reply,
    Request,
    Reward,
    ServiceError,
    Settle,
    decision_reply,
    not_found,
    reward_reply,
)
from .settings import check_rewards
from .store import (
    Database,
    DecisionRow,
    RewardRow,
    TaskRow,
    decisions,
    observations,
    rewards,
    tasks,
)
from .tasks import (
    SNAPSHOT_EVERY,
    Key,
    StateQuery,
    TaskCache,
    TaskState,
    current_states,
    write_snapshots,
)


class Transaction(NamedTuple):
    """An open transaction, what outlives it, and the current time, which never decreases."""

    connection: sa.Connection
    database: Database
    catalog: Catalog
    cache: TaskCache
    now: float


class Learner:
    """Serves the requests of one transaction that are not decisions.

    Rows are read before all requests and written after them. The tasks are locked in between.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._in = transaction
        self._tasks: dict[int, TaskRow] = {}
        self._states: dict[Key, TaskState] = {}
        self._decisions: dict[str, DecisionRow] = {}
        self._rewards: dict[str, list[RewardRow]] = defaultdict(list)
        self._changed: dict[str, DecisionRow] = {}
        self._new_rewards: list[RewardRow] = []
        self._observations: list[dict[str, object]] = []
        self._snapshots: list[TaskState] = []
        self.learned: list[Learned] = []

    def tasks_of(self, requests: Sequence[Request]) -> set[int]:
        """Ids of the tasks that these requests are about."""
        self._read([r.decision_id for r in requests if isinstance(r, Reward | Change)])
        limit = sum(r.limit for r in requests if isinstance(r, Settle))
        if limit:
            due = self._in.connection.execute(_due(self._in.now).limit(limit))
            self._add_decisions(due)
        return {row["task_id"] for row in self._decisions.values()}

    def begin(self, rows: dict[int, TaskRow]) -> None:
        """Start with these tasks, which are locked now.

        Another process may have changed decisions since `tasks_of` read them.
        """
        self._tasks = rows
        ids = list(self._decisions)
        if not self._in.database.is_sqlite:
            self._read(ids)
        if ids:
            given = sa.select(rewards).where(rewards.c.decision_id.in_(ids))
            for row in self._in.connection.execute(given.order_by(rewards.c.number)).mappings():
                self._rewards[row["decision_id"]].append(cast(RewardRow, dict(row)))
        of = [(rows[row["task_id"]], row["version"]) for row in self._decisions.values()]
        self.load((task, self._in.catalog.version(task["model"], number)) for task, number in of)

    def _read(self, ids: list[str]) -> None:
        if ids:
            query = sa.select(decisions).where(decisions.c.id.in_(ids))
            self._add_decisions(self._in.connection.execute(query))

    def _add_decisions(self, found: sa.CursorResult) -> None:
        self._decisions |= {row["id"]: cast(DecisionRow, dict(row)) for row in found.mappings()}

    def load(self, wanted: Iterable[tuple[TaskRow, Version]]) -> None:
        """Read the states of these tasks, all at once."""
        asked = [StateQuery(v, t["id"], t["seed"], t["num_learned"]) for t, v in wanted]
        missing = [query for query in asked if not self._has(query)]
        if missing:
            self._write_observations()  # the state under another version reads them from the log
            self._states |= current_states(self._in.connection, self._in.cache, missing)

    def _has(self, query: StateQuery) -> bool:
        state = self._states.get(query.key)
        return state is not None and state.num_learned >= query.num_learned

    def state(self, task: TaskRow, version: Version) -> TaskState:
        """The state of a task, including what this transaction has learned."""
        self.load([(task, version)])
        return self._states[task["id"], version.version]

    def states(self) -> list[TaskState]:
        """All states that were used."""
        return list(self._states.values())

    def write(self) -> None:
        """Write everything that has changed."""
        execute = self._in.connection.execute
        if self._tasks:
            counts = ("id", "num_decisions", "num_learned")
            execute(_UPDATE_TASKS, [_bound(row, counts) for row in self._tasks.values()])
        if self._changed:
            changes = ("id", "status", "expires", "settled")
            execute(_UPDATE_DECISIONS, [_bound(row, changes) for row in self._changed.values()])
        if self._new_rewards:
            execute(rewards.insert(), self._new_rewards)
        self._write_observations()
        write_snapshots(self._in.connection, self._in.database, self._snapshots)

    def _write_observations(self) -> None:
        if self._observations:
            self._in.connection.execute(observations.insert(), self._observations)
        self._observations = []

    def serve(self, request: Reward | Change | Settle) -> Reply | int:
        """Reply to a request; for `Settle` the number of decisions settled."""
        if isinstance(request, Reward):
            return self._reward(request)
        return self._change(request) if isinstance(request, Change) else self._settle()

    def _find(self, request: Reward | Change) -> tuple[DecisionRow, Version]:
        """The decision that a request is about, and the version that made it."""
        row = self._decisions.get(request.decision_id)
        task = self._tasks.get(row["task_id"]) if row else None
        hidden = task is None or (
            request.models is not None and task["model"] not in request.models
        )
        if row is None or task is None or hidden:
            raise not_found("decision_id", request.decision_id)
        return row, self._in.catalog.version(task["model"], row["version"])

    def _reward(self, request: Reward) -> Reply:
        row, version = self._find(request)
        before = self._rewards[row["id"]]
        same = next((r for r in before if r["reward_id"] == request.reward_id), None)
        if same is not None:
            return _repeated_reward(row, same, request)
        try:
            check_rewards(version.likelihood, np.asarray([request.value]))
        except ValueError as error:
            raise ServiceError(422, str(error)) from error
        if row["status"] == "deferred":
            raise ServiceError(409, "the decision is deferred; activate it, then reward it")
        expired = row["expires"] is not None and self._in.now > row["expires"]
        late = row["settled"] or expired
        at_once = version.settings.aggregation == "first"
        if not late and at_once:
            self._observe(row, version, request.value, "reward")
        new: RewardRow = {
            "decision_id": row["id"],
            "reward_id": request.reward_id,
            "number": len(before),
            "value": request.value,
            "late": late,
            "received": self._in.now,
        }
        before.append(new)
        self._new_rewards.append(new)
        if late:
            ignored = row["status"] == "cancelled" or not expired
            return reward_reply(row["id"], "ignored" if ignored else "late")
        return reward_reply(row["id"], "learned" if at_once else "waiting")

    def _change(self, request: Change) -> Reply:
        row, version = self._find(request)
        if row["status"] == request.status:
            return decision_reply(row)
        if row["status"] == "cancelled" or row["settled"]:
            state = "cancelled" if row["status"] == "cancelled" else "learned or expired"
            raise ServiceError(409, f"the decision is already {state}; it cannot be changed")
        wait = version.settings.reward_wait
        row["status"] = request.status
        if request.status == "active":
            row["expires"] = None if wait is None else self._in.now + wait
        else:
            row["settled"] = True
        self._changed[row["id"]] = row
        return decision_reply(row)

    def _settle(self) -> int:
        """Learn from the decisions that have expired; how many there were."""
        due = [row for row in self._decisions.values() if self._is_due(row)]
        for row in due:
            version = self._in.catalog.version(self._tasks[row["task_id"]]["model"], row["version"])
            on_time = [r["value"] for r in self._rewards[row["id"]] if not r["late"]]
            value = _aggregate(version.settings.aggregation, on_time)
            source = "reward" if on_time else "default"
            value = version.settings.default_reward if value is None else value
            try:
                self._observe(row, version, value, source)
            except ServiceError:  # for example a sum outside the support: settle without it
                self._observe(row, version, None, source)
        return len(due)

    def _is_due(self, row: DecisionRow) -> bool:
        waits = row["status"] == "active" and not row["settled"] and row["task_id"] in self._tasks
        return waits and row["expires"] is not None and row["expires"] <= self._in.now

    def _observe(
        self, row: DecisionRow, version: Version, value: float | None, source: str
    ) -> None:
        """Settle a decision, and learn its reward if there is one."""
        task = self._tasks[row["task_id"]]
        if value is not None:
            phi = np.frombuffer(row["features"]).reshape(row["num_actions"], -1)[row["taken"]]
            moment = version.moment(task["num_decisions"], self._in.now)
            state = self.state(task, version).learn(version, phi, value, moment)
            self._states[state.key] = state
            self._observations.append(
                {
                    "task_id": task["id"],
                    "number": task["num_learned"],
                    "decision_id": row["id"],
                    "features": phi.tobytes(),
                    "reward": value,
                    "source": source,
                    "learned": self._in.now,
                    "num_decisions": task["num_decisions"],
                }
            )
            task["num_learned"] += 1
            self.learned.append(Learned(value, row["predicted"], task["num_learned"]))
            if task["num_learned"] % SNAPSHOT_EVERY == 0:
                self._snapshots.append(state)
        row["settled"] = True
        self._changed[row["id"]] = row


_UPDATE_TASKS = (
    tasks.update()
    .where(tasks.c.id == sa.bindparam("_id"))
    .values(num_decisions=sa.bindparam("_num_decisions"), num_learned=sa.bindparam("_num_learned"))
)
_UPDATE_DECISIONS = (
    decisions.update()
    .where(decisions.c.id == sa.bindparam("_id"))
    .values({name: sa.bindparam(f"_{name}") for name in ("status", "expires", "settled")})
)


def _bound(row: Any, names: tuple[str, ...]) -> dict[str, object]:
    """Values of these columns by the names of their parameters."""
    return {f"_{name}": row[name] for name in names}


def _due(now: float) -> sa.Select:
    """Decisions that have expired, the earliest first."""
    return (
        sa.select(decisions)
        .where(decisions.c.settled.is_(False), decisions.c.expires <= now)
        .where(decisions.c.status == "active")
        .order_by(decisions.c.expires, decisions.c.id)
    )


def _repeated_reward(row: DecisionRow, same: RewardRow, request: Reward) -> Reply:
    """The earlier reply to a reward that is reported again."""
    if same["value"] != request.value:
        raise ServiceError(
            409,
            f"`reward`: decision {row['id']!r} has the reward {same['value']:g} under this "
            "reward_id; pass another reward_id for a further reward",
        )
    expired = row["expires"] is not None and same["received"] > row["expires"]
    status = "late" if expired else "ignored" if same["late"] else ""
    return reward_reply(row["id"], status or ("learned" if row["settled"] else "waiting"))


def _aggregate(aggregation: str, values: list[float]) -> float | None:
    """One reward from those that came in time; None if there are none."""
    if not values:
        return None
    return {"first": values[0], "last": values[-1], "sum": sum(values)}[aggregation]
