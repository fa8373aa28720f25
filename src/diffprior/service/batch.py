"""One transaction: requests of many callers and tasks, decided, learned and logged together."""

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import sqlalchemy as sa

from ..bandits.decisions import TaskChoice, choose_for_task
from .catalog import task_seed
from .learner import Learner, Transaction
from .metrics import Learned
from .requests import Decide, Request, ServiceError, decision_reply
from .store import decisions, tasks, tokens
from .tasks import TaskState
from .version import Version

Row = Any


class Batch:
    """The requests of one transaction. Nothing outside it changes until `commit_cache`."""

    def __init__(self, transaction: Transaction) -> None:
        self._in = transaction
        self._learner = Learner(transaction)
        self.results: list[tuple[Request, Any]] = []

    def run(self, requests: list[Request]) -> None:
        """Serve all requests; what one of them did wrong is its own result alone."""
        decides = [r for r in requests if isinstance(r, Decide) and self._is_sound(r)]
        others = [r for r in requests if not isinstance(r, Decide)]
        named = self._create_tasks(decides)
        owners = self._learner.tasks_of(others)
        rows = self._lock({row["id"]: row for row in named.values()}, owners)
        self._learner.begin(rows)
        for request in others:
            self._attempt(request, lambda r=request: self._learner.serve(r))
        self._decide(decides, {key: rows[row["id"]] for key, row in named.items()})
        self._learner.write()

    def commit_cache(self) -> None:
        """Keep in memory what is now in the log."""
        self._in.cache.put(self._learner.states())

    @property
    def learned(self) -> list[Learned]:
        """What was learned."""
        return self._learner.learned

    def _attempt(self, request: Request, serve: Any) -> None:
        try:
            self.results.append((request, serve()))
        except ServiceError as error:
            self.results.append((request, error))

    def _is_sound(self, request: Decide) -> bool:
        """Whether a decision can be taken; a task comes into being by no other."""
        try:
            request.check(self._in.catalog.for_task(request.model, request.task).dim)
        except ServiceError as error:
            self.results.append((request, error))
            return False
        return True

    def _create_tasks(self, requests: list[Decide]) -> dict[tuple[str, str], Row]:
        """Rows of the tasks that are decided for, new ones made."""
        wanted = {(r.model, r.task): r for r in requests}
        found = self._find_tasks(wanted)
        missing = {key: wanted[key] for key in sorted(wanted.keys() - found.keys())}
        new = [self._new_task(request) for request in self._within_limits(missing.values())]
        if new:
            self._in.connection.execute(self._in.database.insert_if_absent(tasks), new)
        return found | self._find_tasks(missing) if missing else found

    def _new_task(self, request: Decide) -> Row:
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
        """Those whose token may still create tasks; the others are refused later.

        Here as for tasks, rows are locked in order, so that processes cannot wait for each other.
        """
        by_token = defaultdict(list)
        for request in requests:
            by_token[request.token].append(request)
        kept = by_token.pop(None, [])
        for token, wanted in sorted(by_token.items()):
            where = tokens.c.id == token
            query = sa.select(tokens).where(where).with_for_update()
            row = self._in.connection.execute(query).one()
            allowed = wanted[: max(0, row.max_tasks - row.num_tasks)]
            total = row.num_tasks + len(allowed)
            self._in.connection.execute(tokens.update().where(where).values(num_tasks=total))
            kept += allowed
        return sorted(kept, key=lambda request: (request.model, request.task))

    def _find_tasks(self, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Row]:
        by_model = defaultdict(list)
        for model, name in wanted:
            by_model[model].append(name)
        found = {}
        for model, names in by_model.items():
            query = sa.select(tasks).where(tasks.c.model == model, tasks.c.name.in_(names))
            for row in self._in.connection.execute(query).mappings():
                found[model, row["name"]] = dict(row)
        return found

    def _lock(self, named: dict[int, Row], owners: set[int]) -> dict[int, Row]:
        """Rows of all these tasks, which no other process can change until the end."""
        held = named if self._in.database.is_sqlite else {}  # where one transaction writes at once
        ids = sorted((named.keys() | owners) - held.keys())
        if not ids:
            return held
        query = sa.select(tasks).where(tasks.c.id.in_(ids)).order_by(tasks.c.id).with_for_update()
        found = self._in.connection.execute(query).mappings()
        return held | {row["id"]: dict(row) for row in found}

    def _decide(self, requests: list[Decide], named: dict[tuple[str, str], Row]) -> None:
        known = self._known([r.decision_id for r in requests])
        versions = {key: self._in.catalog.for_task(*key) for key in named}
        self._learner.load((task, versions[key]) for key, task in named.items())
        groups: dict[Any, list[tuple[Decide, Version, TaskState, Row, int]]] = defaultdict(list)
        repeated = []
        for request in requests:
            task = named.get((request.model, request.task))
            if task is None:
                self.results.append((request, ServiceError(429, _TOO_MANY_TASKS)))
                continue
            if request.decision_id in known:
                repeated.append((request, task))
                continue
            version = versions[request.model, request.task]
            state = self._learner.state(task, version)
            number = task["num_decisions"]
            task["num_decisions"] += 1
            known[request.decision_id] = None
            groups[request.model, version.version].append((request, version, state, task, number))
        rows: list[Row] = []
        for group in groups.values():
            rows += self._decide_group(group)
        if rows:
            self._in.connection.execute(decisions.insert(), rows)
        known |= {row["id"]: row for row in rows}
        for request, task in repeated:
            self._attempt(request, lambda r=request, t=task: _again(r, t, known[r.decision_id]))

    def _known(self, ids: list[str]) -> dict[str, Any]:
        query = sa.select(decisions).where(decisions.c.id.in_(ids))
        return {row["id"]: dict(row) for row in self._in.connection.execute(query).mappings()}

    def _decide_group(self, group: list[tuple[Decide, Version, TaskState, Row, int]]) -> list[Row]:
        """Decisions of one version, whose draws are one program."""
        version = group[0][1]
        draws = version.policy(
            [
                state.draw_request(version, number, version.moment(number, self._in.now))
                for _, _, state, _, number in group
            ]
        )
        chosen = [
            choose_for_task(
                draws.of(i),
                draws.failed[i],
                request.features,
                request.mask,
                request.top_k or 1,
                request.taken,
                (task["seed"], number),
            )
            for i, (request, _, _, task, number) in enumerate(group)
        ]
        predicted = version.mean_reward(np.stack([c.predictors for c in chosen])).mean(axis=1)
        rows = []
        for (request, _, _, task, number), choice, mean in zip(
            group, chosen, predicted, strict=True
        ):
            row = self._row(request, version, task["id"], number, choice, float(mean))
            rows.append(row)
            self.results.append((request, decision_reply(row)))
        return rows

    def _row(
        self,
        request: Decide,
        version: Version,
        task_id: int,
        number: int,
        choice: TaskChoice,
        predicted: float,
    ) -> Row:
        wait = version.settings.reward_wait
        expires = None if wait is None or request.deferred else self._in.now + wait
        return {
            "id": request.decision_id,
            "task_id": task_id,
            "number": number,
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
            "created": self._in.now,
            "expires": expires,
        }


_TOO_MANY_TASKS = "the token has created as many tasks as it may; ask for a higher limit"


def _again(request: Decide, task: Row, row: Row) -> Row:
    """The reply of before to a decision that is asked for again."""
    same = row["task_id"] == task["id"] and row["features"] == request.features.tobytes()
    if not same:
        raise ServiceError(
            409, f"`decision_id`: {request.decision_id!r} is of another decision; use a new one"
        )
    return decision_reply(row)
