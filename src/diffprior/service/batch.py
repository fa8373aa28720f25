"""The requests of one transaction: rewards are learned once or stored as late, then decisions."""

import functools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa

from ..bandits.decisions import TaskChoice, choose_for_task
from .models import Catalog, Version, task_seed
from .requests import (
    Change,
    Decide,
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
    Row,
    decisions,
    observations,
    read_rows,
    rewards,
    tasks,
    tokens,
)
from .tasks import SNAPSHOT_EVERY, Key, TaskCache, TaskState, current_states, write_snapshots

TaskName = tuple[str, str]  # model and task


class _Pending(NamedTuple):
    """A decision to make: the state of its task, and its number among the task's decisions."""

    request: Decide
    state: TaskState
    task: Row
    number: int


class Batch:
    """The requests of one transaction at the time `now`; the cache changes in `commit_cache` only.

    Rows are read before all requests and written after them. The tasks are locked in between.
    """

    def __init__(
        self,
        connection: sa.Connection,
        database: Database,
        catalog: Catalog,
        cache: TaskCache,
        now: float,
    ) -> None:
        self._connection, self._database = connection, database
        self._catalog, self._cache, self._now = catalog, cache, now
        self._tasks: dict[int, Row] = {}
        self._states: dict[Key, TaskState] = {}
        self._decisions: dict[str, Row] = {}
        self._rewards: dict[str, list[Row]] = defaultdict(list)
        self._changed: dict[str, Row] = {}
        self._new_rewards: list[Row] = []
        self._observations: list[Row] = []
        self._snapshots: list[TaskState] = []
        self.results: list[tuple[Request, object]] = []
        self.learned: list[tuple[float, float, int]] = []  # reward, prediction, number of the task

    def run(self, requests: list[Request]) -> None:
        """Serve all requests; the error of a rejected one is its result."""
        decides = [r for r in requests if isinstance(r, Decide) and self._is_valid(r)]
        others = [r for r in requests if not isinstance(r, Decide)]
        named = self._create_tasks(decides)
        self._find_decisions(others)
        self._lock_tasks({row["id"]: row for row in named.values()})
        self._read_rewards()
        for request in others:
            self._attempt(request, functools.partial(self._serve, request))
        self._decide(decides, {key: self._tasks[row["id"]] for key, row in named.items()})
        self._write()

    def commit_cache(self) -> None:
        """Store the states in memory, once they are in the log."""
        self._cache.put(self._states.values())

    def _attempt(self, request: Request, serve: Callable[[], object]) -> None:
        try:
            self.results.append((request, serve()))
        except ServiceError as error:
            self.results.append((request, error))

    def _is_valid(self, request: Decide) -> bool:
        """Whether a decision is valid; only valid ones create a task."""
        try:
            request.check(self._catalog.for_task(request.model, request.task).dim)
        except ServiceError as error:
            self.results.append((request, error))
            return False
        return True

    def _create_tasks(self, requests: list[Decide]) -> dict[TaskName, Row]:
        """Rows of the tasks of these decisions; new tasks are created."""
        wanted = {(r.model, r.task): r for r in requests}
        found = self._find_tasks(wanted)
        missing = {key: wanted[key] for key in sorted(wanted.keys() - found.keys())}
        new = [self._new_task(request) for request in self._within_limits(missing.values())]
        if new:
            self._connection.execute(self._database.insert_if_absent(tasks), new)
        return found | self._find_tasks(missing) if missing else found

    def _new_task(self, request: Decide) -> Row:
        return {
            "model": request.model,
            "name": request.task,
            "seed": task_seed(self._catalog.versions_of(request.model)[0].seed, request.task),
            "num_decisions": 0,
            "num_learned": 0,
            "created": self._now,
        }

    def _within_limits(self, requests: Iterable[Decide]) -> list[Decide]:
        """Those whose token may still create tasks; the others are rejected later.

        Rows are locked in order, so that processes do not deadlock.
        """
        by_token = defaultdict(list)
        for request in requests:
            by_token[request.token].append(request)
        allowed = by_token.pop(None, [])
        for token, wanted in sorted(by_token.items()):
            where = tokens.c.id == token
            query = sa.select(tokens).where(where).with_for_update()
            row = self._connection.execute(query).one()
            within = wanted[: max(0, row.max_tasks - row.num_tasks)]
            total = row.num_tasks + len(within)
            self._connection.execute(tokens.update().where(where).values(num_tasks=total))
            allowed += within
        return sorted(allowed, key=lambda request: (request.model, request.task))

    def _find_tasks(self, wanted: Iterable[TaskName]) -> dict[TaskName, Row]:
        by_model = defaultdict(list)
        for model, name in wanted:
            by_model[model].append(name)
        found: dict[TaskName, Row] = {}
        for model, names in by_model.items():
            query = sa.select(tasks).where(tasks.c.model == model, tasks.c.name.in_(names))
            found |= {(model, row["name"]): row for row in read_rows(self._connection, query)}
        return found

    def _find_decisions(self, requests: Sequence[Request]) -> None:
        """Read the decisions that rewards and changes are about, and those to settle."""
        self._decisions = self._read(
            [r.decision_id for r in requests if isinstance(r, Reward | Change)]
        )
        limit = sum(r.limit for r in requests if isinstance(r, Settle))
        if limit:
            d = decisions.c
            waits = (d.settled.is_(False), d.expires <= self._now, d.status == "active")
            query = sa.select(decisions).where(*waits).order_by(d.expires, d.id).limit(limit)
            self._decisions |= {row["id"]: row for row in read_rows(self._connection, query)}

    def _read(self, ids: list[str]) -> dict[str, Row]:
        query = sa.select(decisions).where(decisions.c.id.in_(ids))
        return {row["id"]: row for row in read_rows(self._connection, query)} if ids else {}

    def _lock_tasks(self, named: dict[int, Row]) -> None:
        """Read these tasks and those of the decisions, locked until the end of the transaction."""
        owners = {row["task_id"] for row in self._decisions.values()}
        self._tasks = named if self._database.is_sqlite else {}  # which has one writer at a time
        ids = sorted((named.keys() | owners) - self._tasks.keys())
        if ids:
            query = sa.select(tasks).where(tasks.c.id.in_(ids)).order_by(tasks.c.id)
            found = read_rows(self._connection, query.with_for_update())
            self._tasks = self._tasks | {row["id"]: row for row in found}

    def _read_rewards(self) -> None:
        """Read the rewards of the decisions, and the states that they change."""
        ids = list(self._decisions)
        if not self._database.is_sqlite:  # another process may have changed them before the lock
            self._decisions |= self._read(ids)
        if ids:
            given = sa.select(rewards).where(rewards.c.decision_id.in_(ids))
            for row in read_rows(self._connection, given.order_by(rewards.c.number)):
                self._rewards[row["decision_id"]].append(row)
        self._load((self._tasks[r["task_id"]], self._version(r)) for r in self._decisions.values())

    def _version(self, row: Row) -> Version:
        """The version that made a decision."""
        return self._catalog.version(self._tasks[row["task_id"]]["model"], row["version"])

    def _load(self, wanted: Iterable[tuple[Row, Version]]) -> None:
        """Read the states of these tasks, all at once."""
        missing = []
        for task, version in wanted:
            state = self._states.get((task["id"], version.version))
            if state is None or state.num_learned < task["num_learned"]:
                missing.append((task, version))
        if missing:
            self._write_observations()  # the state under another version reads them from the log
            self._states |= current_states(self._connection, self._cache, missing)

    def _state(self, task: Row, version: Version) -> TaskState:
        """The state of a task, including what this transaction has learned."""
        self._load([(task, version)])
        return self._states[task["id"], version.version]

    def _write(self) -> None:
        """Write everything that has changed."""
        execute = self._connection.execute
        if self._tasks:
            execute(*_update_tasks(self._tasks.values()))
        if self._changed:
            execute(*_update_decisions(self._changed.values()))
        if self._new_rewards:
            execute(rewards.insert(), self._new_rewards)
        self._write_observations()
        write_snapshots(self._connection, self._database, self._snapshots)

    def _write_observations(self) -> None:
        if self._observations:
            self._connection.execute(observations.insert(), self._observations)
        self._observations = []

    def _serve(self, request: Request) -> Reply | int:
        """Reply to a request that is not a decision."""
        if isinstance(request, Reward):
            return self._reward(request, self._find(request))
        return (
            self._change(request, self._find(request))
            if isinstance(request, Change)
            else self._settle()
        )

    def _find(self, request: Reward | Change) -> Row:
        """The decision that a request is about."""
        row = self._decisions.get(request.decision_id)
        task = self._tasks.get(row["task_id"]) if row else None
        allowed = request.models
        if not row or not task or (allowed is not None and task["model"] not in allowed):
            raise not_found("decision_id", request.decision_id)
        return row

    def _reward(self, request: Reward, row: Row) -> Reply:
        before, version = self._rewards[row["id"]], self._version(row)
        same = next((r for r in before if r["reward_id"] == request.reward_id), None)
        if same is not None:
            return _repeated_reward(row, same, request)
        try:
            check_rewards(version.likelihood, np.asarray([request.value]))
        except ValueError as error:
            raise ServiceError(422, str(error)) from error
        if row["status"] == "deferred":
            raise ServiceError(409, "the decision is deferred; activate it, then reward it")
        expired = row["expires"] is not None and self._now > row["expires"]
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
            "received": self._now,
        }
        before.append(new)
        self._new_rewards.append(new)
        if late:
            ignored = row["status"] == "cancelled" or not expired
            return reward_reply(row["id"], "ignored" if ignored else "late")
        return reward_reply(row["id"], "learned" if at_once else "waiting")

    def _change(self, request: Change, row: Row) -> Reply:
        if row["status"] == request.status:
            return decision_reply(row)
        if row["status"] == "cancelled" or row["settled"]:
            state = "cancelled" if row["status"] == "cancelled" else "learned or expired"
            raise ServiceError(409, f"the decision is already {state}; it cannot be changed")
        row["status"] = request.status
        if request.status == "active":
            row["expires"] = self._expiry(self._version(row))
        else:
            row["settled"] = True
        self._changed[row["id"]] = row
        return decision_reply(row)

    def _expiry(self, version: Version) -> float | None:
        wait = version.settings.reward_wait
        return None if wait is None else self._now + wait

    def _settle(self) -> int:
        """Learn from the decisions that have expired; how many there were."""
        due = [row for row in self._decisions.values() if self._is_due(row)]
        for row in due:
            version = self._version(row)
            on_time = [r["value"] for r in self._rewards[row["id"]] if not r["late"]]
            source, value = "default", version.settings.default_reward
            if on_time:
                several = {"first": on_time[0], "last": on_time[-1], "sum": sum(on_time)}
                source, value = "reward", several[version.settings.aggregation]
            try:
                self._observe(row, version, value, source)
            except ServiceError:  # for example a sum outside the support: settle without it
                self._observe(row, version, None, source)
        return len(due)

    def _is_due(self, row: Row) -> bool:
        waits = row["status"] == "active" and not row["settled"] and row["task_id"] in self._tasks
        return waits and row["expires"] is not None and row["expires"] <= self._now

    def _observe(self, row: Row, version: Version, value: float | None, source: str) -> None:
        """Settle a decision, and learn its reward if there is one."""
        task = self._tasks[row["task_id"]]
        if value is not None:
            phi = np.frombuffer(row["features"]).reshape(row["num_actions"], -1)[row["taken"]]
            clock = version.clock(task["num_decisions"], self._now)
            state = self._state(task, version).learn(phi, value, clock)
            self._states[state.key] = state
            self._observations.append(
                {
                    "task_id": task["id"],
                    "number": task["num_learned"],
                    "decision_id": row["id"],
                    "features": phi.tobytes(),
                    "reward": value,
                    "source": source,
                    "learned": self._now,
                    "num_decisions": task["num_decisions"],
                }
            )
            task["num_learned"] += 1
            self.learned.append((value, row["predicted"], task["num_learned"]))
            if task["num_learned"] % SNAPSHOT_EVERY == 0:
                self._snapshots.append(state)
        row["settled"] = True
        self._changed[row["id"]] = row

    def _decide(self, requests: list[Decide], named: dict[TaskName, Row]) -> None:
        known = self._read([r.decision_id for r in requests])
        versions = {key: self._catalog.for_task(*key) for key in named}
        self._load((task, versions[key]) for key, task in named.items())
        groups: dict[tuple[str, int], list[_Pending]] = defaultdict(list)
        repeated = []
        new: set[str] = set()
        for request in requests:
            key = (request.model, request.task)
            if key not in named:
                why = "the token has created as many tasks as it may; ask for a higher limit"
                self.results.append((request, ServiceError(429, why)))
                continue
            task, version = named[key], versions[key]
            if request.decision_id in known or request.decision_id in new:
                repeated.append((request, task))
                continue
            pending = _Pending(request, self._state(task, version), task, task["num_decisions"])
            groups[request.model, version.version].append(pending)
            task["num_decisions"] += 1
            new.add(request.decision_id)
        rows = [row for group in groups.values() for row in self._decide_group(group)]
        if rows:
            self._connection.execute(decisions.insert(), rows)
        known |= {row["id"]: row for row in rows}
        for request, task in repeated:
            row = known[request.decision_id]
            self._attempt(request, functools.partial(_repeated_decision, request, task, row))

    def _decide_group(self, group: list[_Pending]) -> list[Row]:
        """Decisions of one version, drawn by one program."""
        version = group[0].state.version
        clocks = [version.clock(p.number, self._now) for p in group]
        draws = version.policy(
            [p.state.draw_request(p.number, clock) for p, clock in zip(group, clocks, strict=True)]
        )
        chosen = [
            choose_for_task(
                draws.of(i),
                draws.failed[i],
                p.request.features,
                p.request.mask,
                p.request.top_k or 1,
                p.request.taken,
                (p.task["seed"], p.number),
            )
            for i, p in enumerate(group)
        ]
        predicted = version.mean_reward(np.stack([c.predictors for c in chosen])).mean(axis=1)
        rows = [self._row(*each) for each in zip(group, chosen, predicted.tolist(), strict=True)]
        self.results += [
            (p.request, decision_reply(row)) for p, row in zip(group, rows, strict=True)
        ]
        return rows

    def _row(self, pending: _Pending, choice: TaskChoice, predicted: float) -> Row:
        request, version = pending.request, pending.state.version
        return {
            "id": request.decision_id,
            "task_id": pending.task["id"],
            "number": pending.number,
            "version": version.version,
            "features": request.features.astype(np.float64).tobytes(),
            "num_actions": len(request.features),
            "names": json.dumps(request.names) if request.names else None,
            "mask": None if request.mask is None else request.mask.tobytes(),
            "ranking": json.dumps(choice.ranking.tolist()),
            "top_k": request.top_k,
            "taken": choice.taken,
            "propensity": choice.propensity,
            "propensity_se": choice.propensity_se,
            "predicted": predicted if np.isfinite(predicted) else 0.0,
            "failed": choice.failed,
            "shadow": request.taken is not None,
            "status": "deferred" if request.deferred else "active",
            "settled": False,
            "created": self._now,
            "expires": None if request.deferred else self._expiry(version),
        }


def _update(
    table: sa.Table, *columns: str
) -> Callable[[Iterable[Row]], tuple[sa.Update, list[Row]]]:
    """Statement and parameters, by rows, that write these columns."""
    values: Row = {name: sa.bindparam(f"_{name}") for name in columns}
    statement = table.update().where(table.c.id == sa.bindparam("_id")).values(values)
    return lambda rows: (
        statement,
        [{f"_{name}": row[name] for name in ("id", *columns)} for row in rows],
    )


_update_tasks = _update(tasks, "num_decisions", "num_learned")
_update_decisions = _update(decisions, "status", "expires", "settled")


def _repeated_decision(request: Decide, task: Row, row: Row) -> Reply:
    """The earlier reply to a decision that is requested again."""
    if row["task_id"] != task["id"] or row["features"] != request.features.tobytes():
        raise ServiceError(
            409, f"`decision_id`: {request.decision_id!r} is of another decision; use a new one"
        )
    return decision_reply(row)


def _repeated_reward(row: Row, same: Row, request: Reward) -> Reply:
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
