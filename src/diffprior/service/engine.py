"""The thread behind the service: collects requests, serves them in one transaction, replies.

While one batch is computed and written, the next one collects, so batches grow with the load.
Batches begin at least some milliseconds apart: a transaction costs as much as several requests, so
under load few large transactions answer sooner than many small ones. A lone request does not wait.
"""

import functools
import gc
import json
import logging
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, cast

import numpy as np
import sqlalchemy as sa

from ..bandits.decisions import TaskChoice, choose_for_task
from .learner import Learner, Transaction
from .metrics import Learned, Metrics
from .models import Catalog, Version, task_seed
from .requests import Decide, Reply, Request, ServiceError, Settle, decision_reply, unavailable
from .store import Database, DecisionRow, TaskRow, decisions, tasks, tokens
from .tasks import TaskCache, TaskState

MAX_BATCH = 128  # requests per transaction
PACE_SECONDS = 0.005  # at least, from the start of a batch to the start of the next
SETTLE_SECONDS = 1.0  # between searches for decisions that have expired
log = logging.getLogger("diffprior.service")
TaskName = tuple[str, str]  # model and task


class Engine:
    """Serves requests from many threads; the reply is in each request's future."""

    def __init__(self, database: Database, *, max_tasks: int = 20_000, metrics: Metrics) -> None:
        self.database = database
        self.catalog = Catalog(database)
        self.metrics = metrics
        self.task_cache = TaskCache(max_tasks)
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._preparing = threading.Lock()
        self._began = 0.0
        self._clock = 0.0
        self._closed = False
        self.healthy = True

    def start(self) -> None:
        """Compile what is needed, then start serving."""
        self.prepare()
        gc.collect()
        gc.freeze()  # later collections skip what exists now, which takes them a tenth of a second
        self._thread.start()

    def prepare(self) -> None:
        """Compile versions that are not ready, then let them serve."""
        with self._preparing:
            for version in self.catalog.pending():
                version.warm_up()
            self.catalog.serve_ready()

    def submit(self, request: Request) -> Future:
        """Queue a request; its future holds the reply or a `ServiceError`."""
        if self._closed:
            request.future.set_exception(unavailable("the service is stopping"))
        else:
            self._queue.put(request)
        return request.future

    def close(self) -> None:
        """Serve the requests in the queue, then stop."""
        self._closed = True
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        last_settled = time.monotonic()
        while True:
            requests, stopping = self._collect()
            if time.monotonic() - last_settled > SETTLE_SECONDS and not stopping:
                requests.append(Settle())
                last_settled = time.monotonic()
                self._prepare_in_background()
            if requests:
                self._serve(requests)
            if stopping:
                return

    def _prepare_in_background(self) -> None:
        """Compile versions that another process has added, while decisions continue."""
        if self.catalog.pending() and not self._preparing.locked():
            threading.Thread(target=self.prepare, name="prepare", daemon=True).start()

    def _collect(self) -> tuple[list[Request], bool]:
        """Requests in the queue, none if it is time to settle; and whether to stop."""
        try:
            found = [self._queue.get(timeout=SETTLE_SECONDS)]
        except queue.Empty:
            return [], False
        if found[0] is not None:
            time.sleep(max(0.0, self._began + PACE_SECONDS - time.monotonic()))
        self._began = time.monotonic()
        while len(found) < MAX_BATCH and found[-1] is not None:
            try:
                found.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return [request for request in found if request is not None], found[-1] is None

    def _serve(self, requests: list[Request]) -> None:
        begin = time.perf_counter()
        results: Sequence[tuple[Request, object]]
        try:
            results = self._in_one_transaction(requests)
            self.healthy = True
        except sa.exc.SQLAlchemyError as error:
            self.task_cache.clear()  # it is unknown whether the commit succeeded
            self.healthy = False
            reason = type(error.__cause__ or error).__name__
            log.error("database failed: %s", reason)
            results = [(request, unavailable(reason)) for request in requests]
        except Exception:
            self.task_cache.clear()
            if len(requests) > 1:
                for request in requests:
                    self._serve([request])
                return
            log.exception("request failed")
            failed = ServiceError(500, "the request failed; see the service's log")
            results = [(requests[0], failed)]
        self.metrics.batch(len(requests), time.perf_counter() - begin)
        for request, result in results:
            self._reply(request, result)

    def _in_one_transaction(self, requests: list[Request]) -> list[tuple[Request, object]]:
        self._clock = max(self._clock, time.time())
        with self.database.transaction() as connection:
            self.catalog.refresh_if_old(connection)
            batch = Batch(
                Transaction(connection, self.database, self.catalog, self.task_cache, self._clock)
            )
            batch.run(requests)
        batch.commit_cache()
        self.metrics.tasks_in_memory(len(self.task_cache))
        self.metrics.learned(batch.learned)
        return batch.results

    def _reply(self, request: Request, result: object) -> None:
        self.metrics.served(request, result)
        if request.future.cancelled() or not request.future.set_running_or_notify_cancel():
            return
        if isinstance(result, BaseException):
            request.future.set_exception(result)
        else:
            request.future.set_result(result)


class _Pending(NamedTuple):
    """A decision to make: the state of its task, and its number among the task's decisions."""

    request: Decide
    version: Version
    state: TaskState
    task: TaskRow
    number: int


class Batch:
    """The requests of one transaction; nothing outside it changes before `commit_cache`."""

    def __init__(self, transaction: Transaction) -> None:
        self._in = transaction
        self._learner = Learner(transaction)
        self.results: list[tuple[Request, object]] = []

    def run(self, requests: list[Request]) -> None:
        """Serve all requests; the error of a rejected one is its result."""
        decides = [r for r in requests if isinstance(r, Decide) and self._is_valid(r)]
        others = [r for r in requests if not isinstance(r, Decide)]
        named = self._create_tasks(decides)
        owners = self._learner.tasks_of(others)
        rows = self._lock({row["id"]: row for row in named.values()}, owners)
        self._learner.begin(rows)
        for request in others:
            self._attempt(request, functools.partial(self._learner.serve, request))
        self._decide(decides, {key: rows[row["id"]] for key, row in named.items()})
        self._learner.write()

    def commit_cache(self) -> None:
        """Store the states in memory, once they are in the log."""
        self._in.cache.put(self._learner.states())

    @property
    def learned(self) -> list[Learned]:
        """The observations that were learned."""
        return self._learner.learned

    def _attempt(self, request: Request, serve: Callable[[], object]) -> None:
        try:
            self.results.append((request, serve()))
        except ServiceError as error:
            self.results.append((request, error))

    def _is_valid(self, request: Decide) -> bool:
        """Whether a decision is valid; only valid ones create a task."""
        try:
            request.check(self._in.catalog.for_task(request.model, request.task).dim)
        except ServiceError as error:
            self.results.append((request, error))
            return False
        return True

    def _create_tasks(self, requests: list[Decide]) -> dict[TaskName, TaskRow]:
        """Rows of the tasks of these decisions; new tasks are created."""
        wanted = {(r.model, r.task): r for r in requests}
        found = self._find_tasks(wanted)
        missing = {key: wanted[key] for key in sorted(wanted.keys() - found.keys())}
        new = [self._new_task(request) for request in self._within_limits(missing.values())]
        if new:
            self._in.connection.execute(self._in.database.insert_if_absent(tasks), new)
        return found | self._find_tasks(missing) if missing else found

    def _new_task(self, request: Decide) -> dict[str, object]:
        seed = task_seed(self._in.catalog.versions_of(request.model)[0].seed, request.task)
        return {
            "model": request.model,
            "name": request.task,
            "seed": seed,
            "num_decisions": 0,
            "num_learned": 0,
            "created": self._in.now,
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
            row = self._in.connection.execute(query).one()
            within = wanted[: max(0, row.max_tasks - row.num_tasks)]
            total = row.num_tasks + len(within)
            self._in.connection.execute(tokens.update().where(where).values(num_tasks=total))
            allowed += within
        return sorted(allowed, key=lambda request: (request.model, request.task))

    def _find_tasks(self, wanted: Iterable[TaskName]) -> dict[TaskName, TaskRow]:
        by_model = defaultdict(list)
        for model, name in wanted:
            by_model[model].append(name)
        found = {}
        for model, names in by_model.items():
            query = sa.select(tasks).where(tasks.c.model == model, tasks.c.name.in_(names))
            for row in self._in.connection.execute(query).mappings():
                found[model, row["name"]] = cast(TaskRow, dict(row))
        return found

    def _lock(self, named: dict[int, TaskRow], owners: set[int]) -> dict[int, TaskRow]:
        """Rows of all these tasks, locked until the end of the transaction."""
        held = named if self._in.database.is_sqlite else {}  # which has one writer at a time
        ids = sorted((named.keys() | owners) - held.keys())
        if not ids:
            return held
        query = sa.select(tasks).where(tasks.c.id.in_(ids)).order_by(tasks.c.id).with_for_update()
        found = self._in.connection.execute(query).mappings()
        return held | {row["id"]: cast(TaskRow, dict(row)) for row in found}

    def _decide(self, requests: list[Decide], named: dict[TaskName, TaskRow]) -> None:
        known = self._known([r.decision_id for r in requests])
        versions = {key: self._in.catalog.for_task(*key) for key in named}
        self._learner.load((task, versions[key]) for key, task in named.items())
        groups: dict[tuple[str, int], list[_Pending]] = defaultdict(list)
        repeated = []
        new: set[str] = set()
        for request in requests:
            key = (request.model, request.task)
            if key not in named:
                self.results.append((request, ServiceError(429, _TOO_MANY_TASKS)))
                continue
            task, version = named[key], versions[key]
            if request.decision_id in known or request.decision_id in new:
                repeated.append((request, task))
                continue
            state, number = self._learner.state(task, version), task["num_decisions"]
            task["num_decisions"] += 1
            new.add(request.decision_id)
            pending = _Pending(request, version, state, task, number)
            groups[request.model, version.version].append(pending)
        rows = [row for group in groups.values() for row in self._decide_group(group)]
        if rows:
            self._in.connection.execute(decisions.insert(), rows)
        known |= {row["id"]: row for row in rows}
        for request, task in repeated:
            row = known[request.decision_id]
            self._attempt(request, functools.partial(_repeated_decision, request, task, row))

    def _known(self, ids: list[str]) -> dict[str, DecisionRow]:
        query = sa.select(decisions).where(decisions.c.id.in_(ids))
        found = self._in.connection.execute(query).mappings()
        return {row["id"]: cast(DecisionRow, dict(row)) for row in found}

    def _decide_group(self, group: list[_Pending]) -> list[DecisionRow]:
        """Decisions of one version, drawn by one program."""
        version = group[0].version
        draws = version.policy(
            [
                p.state.draw_request(version, p.number, version.moment(p.number, self._in.now))
                for p in group
            ]
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

    def _row(self, pending: _Pending, choice: TaskChoice, predicted: float) -> DecisionRow:
        request, wait = pending.request, pending.version.settings.reward_wait
        return {
            "id": request.decision_id,
            "task_id": pending.task["id"],
            "number": pending.number,
            "version": pending.version.version,
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
            "created": self._in.now,
            "expires": None if wait is None or request.deferred else self._in.now + wait,
        }


_TOO_MANY_TASKS = "the token has created as many tasks as it may; ask for a higher limit"


def _repeated_decision(request: Decide, task: TaskRow, row: DecisionRow) -> Reply:
    """The earlier reply to a decision that is requested again."""
    if row["task_id"] != task["id"] or row["features"] != request.features.tobytes():
        raise ServiceError(
            409, f"`decision_id`: {request.decision_id!r} is of another decision; use a new one"
        )
    return decision_reply(row)
