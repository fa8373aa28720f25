"""Rewards: joined to their decisions, learned once, or kept and marked when they come too late."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa

from .errors import ServiceError, not_found
from .learned import Learned
from .replies import decision_reply, reward_reply
from .requests import Change, Decide, Request, Reward, Settle
from .schema import decisions, observations, rewards, tasks
from .settings import check_rewards
from .tasks import SNAPSHOT_EVERY, TaskState, Wanted, current_states, write_snapshots
from .transaction import Transaction
from .version import Version

Row = dict[str, Any]


class Learner:
    """What one transaction learns of its tasks, which it has locked. Rows are read before, and
    written after, all requests at once."""

    def __init__(self, transaction: Transaction) -> None:
        self._in = transaction
        self._tasks: dict[int, Row] = {}
        self._states: dict[tuple[int, int], TaskState] = {}
        self._decisions: dict[str, Row] = {}
        self._rewards: dict[str, list[Row]] = defaultdict(list)
        self._changed: dict[str, Row] = {}
        self._new_rewards: list[Row] = []
        self._observations: list[Row] = []
        self._snapshots: list[TaskState] = []
        self.learned: list[Learned] = []

    def tasks_of(self, requests: Sequence[Request]) -> set[int]:
        """Ids of the tasks that these requests are about."""
        self._read([r.decision_id for r in requests if isinstance(r, Reward | Change)])
        limit = sum(r.limit for r in requests if isinstance(r, Settle))
        if limit:
            due = self._in.connection.execute(_due(self._in.now).limit(limit)).mappings()
            self._decisions |= {row["id"]: dict(row) for row in due}
        return {row["task_id"] for row in self._decisions.values()}

    def begin(self, rows: dict[int, Row]) -> None:
        """These tasks are locked now. Another process may have changed what was read before."""
        self._tasks = rows
        ids = list(self._decisions)
        if not self._in.database.is_sqlite:
            self._read(ids)
        if ids:
            given = sa.select(rewards).where(rewards.c.decision_id.in_(ids))
            for row in self._in.connection.execute(given.order_by(rewards.c.number)).mappings():
                self._rewards[row["decision_id"]].append(dict(row))
        of = [(rows[row["task_id"]], row["version"]) for row in self._decisions.values()]
        self.load((task, self._in.catalog.version(task["model"], number)) for task, number in of)

    def _read(self, ids: list[str]) -> None:
        if ids:
            query = sa.select(decisions).where(decisions.c.id.in_(ids))
            found = self._in.connection.execute(query).mappings()
            self._decisions |= {row["id"]: dict(row) for row in found}

    def load(self, wanted: Iterable[tuple[Row, Version]]) -> None:
        """Read what is known of these tasks, all at once."""
        asked = [Wanted(v, t["id"], t["seed"], t["num_learned"]) for t, v in wanted]
        missing = [want for want in asked if not self._has(want)]
        if missing:
            self._write_observations()  # those of another version are read in the log
            self._states |= current_states(self._in.connection, self._in.cache, missing)

    def _has(self, want: Wanted) -> bool:
        state = self._states.get(want.key)
        return state is not None and state.num_learned >= want.num_learned

    def state(self, task: Row, version: Version) -> TaskState:
        """What is known of a task, this transaction included."""
        self.load([(task, version)])
        return self._states[task["id"], version.version]

    def states(self) -> list[TaskState]:
        """What is known at the end."""
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

    def serve(self, request: Request) -> Any:
        """Serve a request that is not a decision."""
        if isinstance(request, Reward):
            return self._reward(request)
        if isinstance(request, Change):
            return self._change(request)
        assert isinstance(request, Settle) and not isinstance(request, Decide)
        return self._settle()

    def _decision(self, decision_id: str, models: Any) -> tuple[Row, Version]:
        row = self._decisions.get(decision_id)
        task = self._tasks.get(row["task_id"]) if row else None
        if row is None or task is None or (models is not None and task["model"] not in models):
            raise not_found("decision_id", decision_id)
        return row, self._in.catalog.version(task["model"], row["version"])

    def _reward(self, request: Reward) -> Row:
        row, version = self._decision(request.decision_id, request.models)
        before = self._rewards[row["id"]]
        same = next((r for r in before if r["reward_id"] == request.reward_id), None)
        if same is not None:
            return self._repeated(row, same, request)
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
        new = {
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
        self._changed[row["id"]] = row
        return decision_reply(row)

    def _settle(self) -> int:
        """End the wait of decisions that are due; how many there were."""
        due = [row for row in self._decisions.values() if self._is_due(row)]
        for row in due:
            version = self._in.catalog.version(self._tasks[row["task_id"]]["model"], row["version"])
            on_time = [r["value"] for r in self._rewards[row["id"]] if not r["late"]]
            value = _aggregate(version.settings.aggregation, on_time)
            source = "reward" if on_time else "default"
            value = version.settings.default_reward if value is None else value
            try:
                self._observe(row, version, value, source)
            except ServiceError:  # a sum outside the support: the wait is over all the same
                self._observe(row, version, None, source)
        return len(due)

    def _is_due(self, row: Row) -> bool:
        waits = row["status"] == "active" and not row["settled"] and row["expires"] is not None
        return waits and row["expires"] <= self._in.now and row["task_id"] in self._tasks

    def _observe(self, row: Row, version: Version, value: float | None, source: str) -> None:
        """Settle a decision, and learn from it if there is a reward."""
        task = self._tasks[row["task_id"]]
        if value is not None:
            table = np.frombuffer(row["features"]).reshape(row["num_actions"], -1)
            phi = table[row["taken"]]
            moment = version.moment(task["num_decisions"], self._in.now)
            state = self.state(task, version).learn(version, phi, value, moment)
            self._states[task["id"], version.version] = state
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


def _bound(row: Row, names: tuple[str, ...]) -> Row:
    """Values of these columns, by the names of their parameters."""
    return {f"_{name}": row[name] for name in names}


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
