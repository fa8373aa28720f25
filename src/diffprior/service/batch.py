"""The requests of one transaction: rewards are learned once or stored as late, then decisions."""

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from ..bandits.decisions import TaskChoice, choose_for_tasks
from .models import Catalog, Version, task_seed
from .panels import Chosen, ItemPanel, Panels
from .requests import (
    Change,
    ChangeTask,
    Choose,
    Decide,
    Reply,
    Request,
    Reward,
    ServiceError,
    Settle,
    decision_reply,
    not_found,
    reward_reply,
    task_reply,
)
from .settings import check_rewards
from .store import (
    Database,
    Row,
    candidates,
    decisions,
    num_bytes,
    observations,
    read_rows,
    rewards,
    rows_with,
    tasks,
    tokens,
)
from .tasks import SNAPSHOT_EVERY, Key, TaskCache, TaskState, current_states, write_snapshots

MAX_REWARDS = 100  # of a decision
TaskName = tuple[str, str]  # model and task
TaskRequest = Decide | ChangeTask  # the latter also of a new item
TOO_MANY_TASKS = ServiceError(
    429, "the token has created as many tasks as it may; ask for a higher limit"
)


class _Pending(NamedTuple):
    """A decision to make: the state of its task, and its number among the task's decisions."""

    request: Decide
    state: TaskState
    task: Row
    number: int


class _Asked(NamedTuple):
    """A choice to make: its version, the items of that, and those named that are not among them."""

    request: Choose
    version: Version
    panel: ItemPanel
    missing: list[TaskName]


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
        panels: Panels,
        now: float,
    ) -> None:
        self._connection, self._database = connection, database
        self._catalog, self._cache, self._panels, self._now = catalog, cache, panels, now
        self._tasks: dict[int, Row] = {}
        self._states: dict[Key, TaskState] = {}
        self._decisions: dict[str, Row] = {}
        self._rewards: dict[str, list[Row]] = defaultdict(list)
        self._changed: dict[str, Row] = {}
        self._changed_tasks: dict[int, Row] = {}
        self._new_rewards: list[Row] = []
        self._observations: list[Row] = []
        self._snapshots: list[TaskState] = []
        self._choices_before: dict[str, Row] = {}
        self._repeated: list[Choose] = []
        self._sets: dict[str, Row] = {}
        self.created: list[Row] = []
        self.stored: Counter[str] = Counter()  # bytes of the log, by model
        self.results: list[tuple[Request, object]] = []
        self.learned: list[tuple[float, float, int]] = []  # reward, prediction, number of the task

    def run(self, requests: list[Request]) -> None:
        """Serve all requests; the error of a rejected one is its result."""
        others = [r for r in requests if isinstance(r, Reward | Change | Settle)]
        about_tasks = [r for r in requests if isinstance(r, Decide | ChangeTask)]
        valid = [r for r in about_tasks if self._is_valid(r)]
        decides = [r for r in valid if isinstance(r, Decide)]
        asked = self._ask([r for r in requests if isinstance(r, Choose)])
        found = self._create_tasks([*valid, *self._new_items(asked)])  # in one order for all
        named = {key: found[key] for r in valid if (key := (r.model, r.task)) in found}
        chosen = self._choose(asked, found)
        self._read_decisions(others)
        taken = {choice.taken["id"] for _, choice in chosen}
        self._lock_tasks({row["id"]: row for row in named.values()}, taken)
        self._read_rewards()
        named = {key: self._tasks[row["id"]] for key, row in named.items()}
        for about in valid:
            self._change_task(about, named.get((about.model, about.task)))
        for request in others:
            self._attempt(request, self._serve)
        self._decide(decides, named, self._log_choices(chosen))
        self._write()

    def commit_cache(self) -> None:
        """Store the states in memory, once they are in the log."""
        self._cache.put(self._states.values())
        self._panels.note(self.created)
        self._panels.note(self._tasks.values())

    def _attempt(self, request: Request, serve: Callable[..., object], *about: object) -> None:
        try:
            self.results.append((request, serve(request, *about)))
        except ServiceError as error:
            self.results.append((request, error))

    def _is_valid(self, request: Decide | ChangeTask) -> bool:
        """Whether a request is valid; only valid ones create a task."""
        try:
            if isinstance(request, Decide) or not request.retire:
                self._catalog.check_quota(request.model)
            if request.attributes is not None:
                self._catalog.check_attributes(request.model, request.attributes)
            version = self._catalog.for_task(request.model, request.task)
            if isinstance(request, Decide):
                version.encode(request)
                request.check(version.num_features)
        except ServiceError as error:
            self.results.append((request, error))
            return False
        return True

    def _rows(self, column: sa.Column[Any], values: Iterable[object]) -> list[Row]:
        """Rows of the table in which this column has one of these values."""
        listed = list(values)
        return read_rows(self._connection, rows_with(column), listed) if listed else []

    def _create_tasks(self, requests: Sequence[TaskRequest]) -> dict[TaskName, Row]:
        """Rows of the tasks of these requests; new tasks are created, but not to be retired."""
        wanted = {(r.model, r.task): r for r in requests}
        found = self._find_tasks(wanted)
        new = {key: r for key, r in wanted.items() if isinstance(r, Decide) or not r.retire}
        missing = [new[key] for key in sorted(new.keys() - found.keys())]
        if rows := [self._new_task(request) for request in self._within_limits(missing)]:
            self._connection.execute(self._database.insert_if_absent(tasks), rows)
        created = self._find_tasks((r.model, r.task) for r in missing)
        self.created += created.values()
        return found | created

    def _find_tasks(self, wanted: Iterable[TaskName]) -> dict[TaskName, Row]:
        by_model = defaultdict(list)
        for model, name in wanted:
            by_model[model].append(name)
        found: dict[TaskName, Row] = {}
        for model, names in by_model.items():
            query = rows_with(tasks.c.name).where(tasks.c.model == model)
            rows = read_rows(self._connection, query, names)
            found |= {(model, row["name"]): row for row in rows}
        return found

    def _new_task(self, request: TaskRequest) -> Row:
        return {
            "model": request.model,
            "name": request.task,
            "seed": task_seed(self._catalog.versions_of(request.model)[0].seed, request.task),
            "num_decisions": 0,
            "num_learned": 0,
            "created": self._now,
            "attributes": None,
            "retired": None,
        }

    def _change_task(self, request: TaskRequest, task: Row | None) -> None:
        retire = isinstance(request, ChangeTask) and request.retire
        if task is None:
            if isinstance(request, ChangeTask):
                error = not_found("task", request.task) if retire else TOO_MANY_TASKS
                self.results.append((request, error))
            return
        retired = task["retired"]
        if isinstance(request, ChangeTask):
            retired = (retired or self._now) if retire else None
        attributes = task["attributes"]
        if request.attributes is not None:
            attributes = json.dumps(request.attributes)
        if (retired, attributes) != (task["retired"], task["attributes"]):
            task |= {"retired": retired, "attributes": attributes}
            self._changed_tasks[task["id"]] = task
        if isinstance(request, ChangeTask):
            self.results.append((request, task_reply(task)))

    def _within_limits(self, requests: list[TaskRequest]) -> list[TaskRequest]:
        """Those whose token may still create tasks; the others are rejected later.

        Rows are locked in order, so that processes do not deadlock.
        """
        allowed = [request for request in requests if request.token is None]
        for token in sorted({request.token for request in requests if request.token}):
            wanted, where = [r for r in requests if r.token == token], tokens.c.id == token
            row = self._connection.execute(sa.select(tokens).where(where).with_for_update()).one()
            within = wanted[: max(0, row.max_tasks - row.num_tasks)]
            total = row.num_tasks + len(within)
            self._connection.execute(tokens.update().where(where).values(num_tasks=total))
            allowed += within
        return sorted(allowed, key=lambda request: (request.model, request.task))

    def _read_decisions(self, requests: Sequence[Request]) -> None:
        """Read the decisions that rewards and changes are about, and those to settle."""
        ids = [r.decision_id for r in requests if isinstance(r, Reward | Change)]
        found = self._rows(decisions.c.id, ids)
        limit = sum(r.limit for r in requests if isinstance(r, Settle))
        if limit:
            d = decisions.c
            waits = (d.settled.is_(False), d.expires <= self._now, d.status == "active")
            due = sa.select(decisions).where(*waits).order_by(d.expires, d.id).limit(limit)
            if not self._database.is_sqlite:  # no two processes settle the same ones
                due = due.join(tasks).with_for_update(of=tasks, skip_locked=True)
            found += read_rows(self._connection, due)
        self._decisions = {row["id"]: row for row in found}

    def _lock_tasks(self, named: dict[int, Row], more: set[int]) -> None:
        """Read these tasks and those of the decisions, locked until the end of the transaction."""
        owners = more | {row["task_id"] for row in self._decisions.values()}
        self._tasks = named if self._database.is_sqlite else {}  # which has one writer at a time
        ids = sorted((named.keys() | owners) - self._tasks.keys())
        if ids:
            query = rows_with(tasks.c.id).order_by(tasks.c.id).with_for_update()
            found = read_rows(self._connection, query, ids)
            self._tasks = self._tasks | {row["id"]: row for row in found}

    def _read_rewards(self) -> None:
        """Read the rewards of the decisions, and the states that they change."""
        ids = list(self._decisions)
        if not self._database.is_sqlite:  # another process may have changed them before the lock
            self._decisions |= {row["id"]: row for row in self._rows(decisions.c.id, ids)}
        for row in sorted(self._rows(rewards.c.decision_id, ids), key=lambda row: row["number"]):
            self._rewards[row["decision_id"]].append(row)
        self._load((self._tasks[r["task_id"]], self._version(r)) for r in self._decisions.values())

    def _version(self, row: Row) -> Version:
        task = self._tasks[row["task_id"]]
        about = (task["model"], row["version"], task["name"])
        return self._catalog.version_in(self._connection, *about)

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
        self._write_sets()
        counts = ("num_decisions", "num_learned", "num_bytes")
        _update(self._connection, tasks, self._tasks.values(), *counts)
        _update(self._connection, tasks, self._changed_tasks.values(), "attributes", "retired")
        changed = self._changed.values()
        _update(self._connection, decisions, changed, "status", "expires", "settled")
        _insert(self._connection, rewards, self._new_rewards)
        self._write_observations()
        write_snapshots(self._connection, self._database, self._snapshots)

    def _write_sets(self) -> None:
        """Store sets of candidates that are not yet; the others are locked, or might be pruned."""
        if not self._sets:
            return
        models = {row["model"] for row in self._sets.values()}
        own = candidates.c.model.in_(models), candidates.c.id.in_(self._sets)
        query = sa.select(candidates.c.id).where(*own).order_by(candidates.c.id)
        query = query.with_for_update(read=True, key_share=True)
        found = set(self._connection.execute(query).scalars())
        new = [self._sets[name] for name in sorted(self._sets.keys() - found)]
        if new:
            self._connection.execute(self._database.insert_if_absent(candidates), new)
        for row in new:
            self.stored[row["model"]] += len(row["items"])

    def _write_observations(self) -> None:
        _insert(self._connection, observations, self._observations)
        self._observations = []

    def _serve(self, request: Reward | Change | Settle) -> Reply | int:
        """Reply to a request that is not a decision."""
        if isinstance(request, Settle):
            return self._settle()
        row = self._decisions.get(request.decision_id)
        task = self._tasks.get(row["task_id"]) if row else None
        allowed = request.models
        if not row or not task or (allowed is not None and task["model"] not in allowed):
            raise not_found("decision_id", request.decision_id)
        if isinstance(request, Change):
            return self._change(request, row)
        return self._reward(request, row)

    def _reward(self, request: Reward, row: Row) -> Reply:
        before, version = self._rewards[row["id"]], self._version(row)
        same = next((r for r in before if r["reward_id"] == request.reward_id), None)
        if same is not None:
            return _repeated_reward(row, same, request)
        try:
            check_rewards(version.likelihood, np.asarray([request.value]))
        except ValueError as error:
            raise ServiceError(422, str(error)) from error
        if len(before) >= MAX_REWARDS:
            raise ServiceError(
                409, f"`reward_id`: expected at most {MAX_REWARDS} rewards of a decision; add them"
            )
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
            features = np.frombuffer(row["features"]).reshape(row["num_actions"], -1)
            phi = features[0 if row["candidates"] else row["taken"]]
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

    def _decide(
        self, requests: list[Decide], named: dict[TaskName, Row], choices: list[Row]
    ) -> None:
        known = {r["id"]: r for r in self._rows(decisions.c.id, [r.decision_id for r in requests])}
        known |= {row["id"]: row for row in choices}
        versions = {key: self._catalog.for_task(*key) for key in named}
        self._load((task, versions[key]) for key, task in named.items())
        groups: dict[Version, list[_Pending]] = defaultdict(list)
        repeated = []
        asked = set(known)
        for request in requests:
            key = (request.model, request.task)
            task = named.get(key)
            if task is not None and request.decision_id in asked:
                repeated.append((request, task))
                continue
            if task is None or task["retired"] is not None:
                retired = f"`task`: {request.task!r} is retired; put it again to use it"
                error = TOO_MANY_TASKS if task is None else ServiceError(409, retired)
                self.results.append((request, error))
                continue
            version = versions[key]
            pending = _Pending(request, self._state(task, version), task, task["num_decisions"])
            groups[version].append(pending)
            task["num_decisions"] += 1
            asked.add(request.decision_id)
        rows = [row for group in groups.values() for row in self._decide_group(group)]
        _insert(self._connection, decisions, choices + rows)
        for row in choices + rows:
            task, size = self._tasks[row["task_id"]], num_bytes(row)
            task["num_bytes"] += size
            self.stored[task["model"]] += size
        known |= {row["id"]: row for row in rows}
        for request, task in repeated:
            self._attempt(request, _repeated_decision, task, known[request.decision_id])

    def _decide_group(self, group: list[_Pending]) -> list[Row]:
        version = group[0].state.version
        clocks = [version.clock(p.number, self._now) for p in group]
        chosen = choose_for_tasks(
            version.policy,
            [p.state.draw_request(p.task, p.number, c) for p, c in zip(group, clocks, strict=True)],
            [p.request.offer for p in group],
            version.settings.propensity_draws,
            version.empty,
        )
        predicted = version.mean_reward(np.stack([c.predictors for c in chosen])).mean(axis=1)
        rows = [self._row(*each) for each in zip(group, chosen, predicted.tolist(), strict=True)]
        self.results += [
            (p.request, decision_reply(row)) for p, row in zip(group, rows, strict=True)
        ]
        return rows

    def _row(self, pending: _Pending, choice: TaskChoice, predicted: float) -> Row:
        request = pending.request
        return self._shared(request, pending.state.version, choice, predicted) | {
            "task_id": pending.task["id"],
            "number": pending.number,
            "names": json.dumps(request.names) if request.names else None,
            "mask": None if request.mask is None else request.mask.tobytes(),
            "ranking": json.dumps(choice.ranking.tolist()),
            "taken": choice.taken,
            "failed": choice.failed,
            "candidates": None,
            "excluded": None,
        }

    def _shared(
        self,
        request: Decide | Choose,
        version: Version,
        choice: TaskChoice | Chosen,
        predicted: float,
    ) -> Row:
        """What the rows of decisions and of choices have in common."""
        return {
            "id": request.decision_id,
            "version": version.version,
            "features": request.features.astype(np.float64).tobytes(),
            "num_actions": len(request.features),
            "top_k": request.top_k,
            "propensity": choice.propensity,
            "propensity_se": choice.propensity_se,
            "num_draws": choice.num_draws,
            "predicted": predicted if np.isfinite(predicted) else 0.0,
            "shadow": request.taken is not None,
            "status": "deferred" if request.deferred else "active",
            "settled": False,
            "created": self._now,
            "expires": None if request.deferred else self._expiry(version),
            "digest": request.digest,
            "raw": None if request.raw is None else json.dumps(request.raw),
        }

    def _ask(self, requests: list[Choose]) -> list[_Asked]:
        """The choices to make, of requests that are valid and not repeated."""
        ids = [request.decision_id for request in requests]
        self._choices_before = {row["id"]: row for row in self._rows(decisions.c.id, ids)}
        asked: dict[str, _Asked] = {}
        for request in requests:
            if request.decision_id in asked or request.decision_id in self._choices_before:
                self._repeated.append(request)
                continue
            try:
                asked[request.decision_id] = self._asked(request)
            except ServiceError as error:
                self.results.append((request, error))
        return list(asked.values())

    def _asked(self, request: Choose) -> _Asked:
        self._catalog.check_quota(request.model)
        version = self._catalog.for_task(request.model, request.decision_id)
        version.check_choices()
        version.encode(request)
        request.check(version.num_features)
        panel = self._panels.of(version, self._connection)
        missing = [(request.model, name) for name in request.items or () if name not in panel]
        return _Asked(request, version, panel, missing)

    def _new_items(self, asked: list[_Asked]) -> list[ChangeTask]:
        """Items to put because choices name them: they may, and nobody has put them before."""
        wanted = {key: a.request.token for a in asked for key in a.missing}
        known = self._find_tasks(wanted)
        return [
            ChangeTask(*key, token=token)
            for key, token in wanted.items()
            if key not in known and not self._rejects_unknown(key[0])
        ]

    def _rejects_unknown(self, model: str) -> bool:
        return self._catalog.versions_of(model)[0].settings.unknown_items == "reject"

    def _choose(
        self, asked: list[_Asked], found: dict[TaskName, Row]
    ) -> list[tuple[_Asked, Chosen]]:
        """The choices to log.

        They come before the locks, because the tasks that are chosen are among those to lock, and
        so before the rewards of this transaction, of which no caller knows that they are learned.
        """
        found = found | self._find_tasks({key for a in asked for key in a.missing} - found.keys())
        made = []
        for each in asked:
            try:
                made.append((each, self._choice(each, found)))
            except ServiceError as error:
                self.results.append((each.request, error))
        return made

    def _choice(self, asked: _Asked, found: dict[TaskName, Row]) -> Chosen:
        request, _, panel, missing = asked
        for key in missing:
            if key not in found:
                unknown = self._rejects_unknown(request.model)
                raise not_found("items", key[1]) if unknown else TOO_MANY_TASKS
            if found[key]["retired"] is not None:
                raise ServiceError(409, f"`items`: {key[1]!r} is retired; put it again to use it")
        if new := [found[key] for key in missing if key[1] not in panel]:  # by a choice before this
            self._panels.add(self._connection, panel, new)
        chosen = panel.choose(request)
        self._sets[chosen.among.id] = chosen.among._asdict() | {"model": request.model}
        return chosen

    def _log_choices(self, choices: list[tuple[_Asked, Chosen]]) -> list[Row]:
        """Rows of choices: each is a decision of the item that is taken."""
        rows = []
        for (request, version, *_), chosen in choices:
            task = self._tasks[chosen.taken["id"]]
            names = [item["name"] for item in chosen.ranking]
            names += [] if task["name"] in names else [task["name"]]
            predicted = float(version.mean_reward(chosen.predictors).mean())
            row = self._shared(request, version, chosen, predicted) | {
                "task_id": task["id"],
                "number": task["num_decisions"],
                "names": json.dumps(names),
                "mask": None,
                "ranking": json.dumps(list(range(len(chosen.ranking)))),
                "taken": names.index(task["name"]),
                "failed": False,
                "candidates": chosen.among.id,
                "excluded": json.dumps(chosen.excluded) if chosen.excluded else None,
            }
            task["num_decisions"] += 1
            rows.append(row)
            self.results.append((request, decision_reply(row)))
        known = self._choices_before | {row["id"]: row for row in rows}
        for again in self._repeated:
            self._attempt(again, _repeated_decision, None, known[again.decision_id])
        return rows


def _insert(connection: sa.Connection, table: sa.Table, rows: list[Row]) -> None:
    if rows:
        connection.execute(table.insert(), rows)


def _update(
    connection: sa.Connection, table: sa.Table, rows: Collection[Row], *columns: str
) -> None:
    """Write these columns of rows."""
    if rows:
        named = [{f"_{name}": row[name] for name in ("id", *columns)} for row in rows]
        connection.execute(_update_statement(table, columns), named)


@functools.cache
def _update_statement(table: sa.Table, columns: tuple[str, ...]) -> sa.Update:
    values: Row = {name: sa.bindparam(f"_{name}") for name in columns}
    return table.update().where(table.c.id == sa.bindparam("_id")).values(values)


def _repeated_decision(request: Decide | Choose, task: Row | None, row: Row) -> Reply:
    """The earlier reply to a decision that is requested again."""
    same = row["digest"] == request.digest
    if row["digest"] is None and task is not None:  # of before
        same = row["task_id"] == task["id"] and row["features"] == request.features.tobytes()
    if not same:
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
    if row["status"] == "cancelled":
        return reward_reply(row["id"], "ignored")
    expired = row["expires"] is not None and same["received"] > row["expires"]
    status = "late" if expired else "ignored" if same["late"] else ""
    return reward_reply(row["id"], status or ("learned" if row["settled"] else "waiting"))
