"""Choices among items, which are tasks: joint draws of all of them, for each version of a model.

Given the prior items are independent, so that a joint draw is one draw of each. A panel holds
several joint draws; a choice takes the next one, as `Items` does. An item is drawn anew after its
evidence has changed, and now and then without, so that choices do not use the same draws forever.
"""

import functools
import itertools
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa
from jaxtyping import Float, Int

from ..bandits.decisions import WINS, best_first, fresh_seed, propensity, seed_key
from ..bandits.panel import Panel, PanelRows, PriorPool
from ..logs.decisions import CandidateSet
from ..priors.conditional import of_average_task, takes_attributes
from .models import Catalog, Version
from .requests import Choose, ServiceError
from .store import Database, Row, candidates, read_rows, tasks
from .tasks import UNUSED_NUMBER, TaskCache, TaskState, current_states, pages

PAGE = 512  # tasks that are read at once
CHUNK = 8  # items that are drawn at once between two transactions
TURN_SECONDS = 0.002  # for drawing changed items between two transactions
REST_SECONDS = 0.02  # between turns of few items, while requests wait
SPARE = 0.1  # share of the time for drawing items anew that have not changed
SCAN_SECONDS, SCAN_SHARE = 1.0, 0.02  # between searches for what other processes changed
DRAWN_FROM = ("num_learned", "attributes")  # what the draws of an item depend on
Share = tuple[float | None, float | None, int, Float[np.ndarray, " m"]]
log = logging.getLogger("diffprior.service")


class Chosen(NamedTuple):
    """Items, best first, and the one taken; what it was among; its propensity, from how many draws
    it is, and the linear predictors of the one taken in draws that did not decide.
    """

    ranking: list[Row]
    taken: Row
    among: CandidateSet
    excluded: list[int]
    propensity: float | None
    propensity_se: float | None
    num_draws: int
    predictors: Float[np.ndarray, " m"]


class ItemPanel:
    """Joint draws of the items of one version that can be chosen."""

    def __init__(self, version: Version, seed: int) -> None:
        self.version = version
        self._rng = np.random.default_rng(seed)
        self.num_draws = 0 if version.at_random else version.settings.panel_draws
        empty = np.empty((0, self.num_draws, version.dim))
        self._panel = Panel(PanelRows(empty, np.empty((0, 0, 0))))
        prior = of_average_task(version.prior)
        self._pool = PriorPool(prior.sample, seed_key(seed), self.num_draws)
        self._items: list[Row] = []  # by row
        self._rows: dict[str, int] = {}
        self._drawn: OrderedDict[str, int] = OrderedDict()  # after how many choices
        self.due: dict[str, Row] = {}  # items to draw for
        self._num_choices, self._first = self._rng.integers([2**40, 2**30]).tolist()
        self._num_redraws = 0
        self._among: CandidateSet | None = None  # all items
        self.scanned, self.scan_seconds, self.turned = -math.inf, 0.0, -math.inf

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Sequence[Row], states: Sequence[TaskState | None], now: float) -> None:
        """Draw for items that can be chosen, given their evidence if there is any."""
        rows = PanelRows(self._thetas(items, states, now), np.empty((len(items), 0, 0)))
        new = [item for item in items if item["name"] not in self._rows]
        self._panel.reserve(len(new))
        for item in new:
            self._rows[item["name"]] = len(self._items)
            self._items.append(item)
            self._among = None
        self._panel.size = len(self._items)
        places = [self._rows[item["name"]] for item in items]
        self._panel.write(np.array(places, np.int64), rows)
        for item, row in zip(items, places, strict=True):
            self._items[row] = dict(item)  # as of now, though a transaction may go on with it
            self._drawn[item["name"]] = self._num_choices
            self._drawn.move_to_end(item["name"])
            self.due.pop(item["name"], None)

    def _thetas(
        self, items: Sequence[Row], states: Sequence[TaskState | None], now: float
    ) -> Float[np.ndarray, "n m d"]:
        version, numbers = self.version, self._num_redraws + np.arange(len(items))
        if version.at_random or not items:
            return np.empty((len(items), self.num_draws, version.dim))
        self._num_redraws += len(items)
        thetas = self._pool(numbers)
        for theta, item in zip(thetas, items, strict=True):
            given = version.known_condition(item["attributes"])
            theta += 0.0 if given is None else given[: version.dim]
        shaped = takes_attributes(of_average_task(version.prior))  # no two items have one prior
        requests, places = [], []
        for place, (item, state) in enumerate(zip(items, states, strict=True)):
            if shaped or state is not None:
                number = UNUSED_NUMBER + (self._first + int(numbers[place])) % 2**30
                clock = version.clock(item["num_decisions"], now)
                state = state or TaskState.empty(item, version)
                requests.append(state.draw_request(item, number, clock))
                places.append(place)
        if requests:
            draws = version.panel_policy(requests)
            found = draws.index.theta
            sound = ~draws.failed.any(axis=1) & np.isfinite(found).all(axis=(1, 2))
            thetas[np.array(places)[sound]] = found[sound]  # elsewhere the prior decides
        return thetas

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self.due.pop(name, None)
            row = self._rows.pop(name, None)
            if row is None:
                continue
            del self._drawn[name]
            self._panel.drop(row)
            last = self._items.pop()
            if row < len(self._items):
                self._items[row], self._rows[last["name"]] = last, row
            self._among = None

    def note(self, item: Row) -> None:
        """Take note of what a transaction may have changed of a task."""
        row = self._rows.get(item["name"])
        if item["retired"] is not None:
            self.drop([item["name"]])
        elif row is None or any(self._items[row][name] != item[name] for name in DRAWN_FROM):
            self.due[item["name"]] = dict(item)

    def waiting(self) -> list[Row]:
        """Items to draw for next: those that changed, else those whose draws were all used."""
        if self.due:
            return list(itertools.islice(self.due.values(), CHUNK))
        oldest = itertools.islice(self._drawn.items(), CHUNK)
        used = [name for name, when in oldest if self._num_choices - when >= self.num_draws > 0]
        return [self._items[self._rows[name]] for name in used]

    def scan(self, connection: sa.Connection) -> None:
        """Find what other processes have changed."""
        begin = time.monotonic()
        t, known = tasks.c, {item["id"]: item for item in self._items}
        columns = [t.id, *(t[name] for name in DRAWN_FROM)]
        active = sa.select(*columns).where(t.model == self.version.model, t.retired.is_(None))
        found = {row.id: row[1:] for row in connection.execute(active)}
        self.drop([item["name"] for task, item in known.items() if task not in found])
        changed = [
            task
            for task, about in found.items()
            if task not in known or tuple(known[task][name] for name in DRAWN_FROM) != about
        ]
        for start in range(0, len(changed), PAGE):
            some = sa.select(tasks).where(t.id.in_(changed[start : start + PAGE]))
            self.due |= {row["name"]: row for row in read_rows(connection, some)}
        self.scanned = time.monotonic()
        self.scan_seconds = self.scanned - begin

    def choose(self, request: Choose) -> Chosen:
        """A choice, by the next joint draw."""
        among, rows = self._among, np.arange(len(self))
        if request.items is not None:
            among, rows = None, np.array([self._rows[n] for n in request.items], np.int64)
        names = dict.fromkeys(request.exclude)
        barred = np.array([self._rows[n] for n in names if n in self._rows], np.int64)
        out = np.flatnonzero(np.isin(rows, barred)) if len(barred) else barred
        count = len(rows) - len(out)
        self._check(request, count)
        where = slice(len(self)) if request.items is None else rows  # which copies nothing
        best = functools.partial(self._best, request, where, out)
        number, self._num_choices = self._num_choices, self._num_choices + 1
        ranking = [self._items[row] for row in rows[best(number)].tolist()]
        taken = ranking[0] if request.taken is None else self._items[self._rows[request.taken]]
        among = among or CandidateSet.of(np.array([self._items[i]["id"] for i in rows.tolist()]))
        if request.items is None:
            self._among = among
        if self.version.at_random:
            share: Share = ((request.top_k or 1) / count, 0.0, 0, np.zeros(1))
        else:
            row = self._rows[taken["name"]]
            place = int(np.flatnonzero(rows == row)[0])
            share = self._share(number, request.features[0], row, lambda m: place in best(m))
        excluded = [self._items[row]["id"] for row in barred.tolist()]
        return Chosen(ranking, taken, among, sorted(excluded), *share)

    def _check(self, request: Choose, count: int) -> None:
        if not count:
            raise ServiceError(
                422,
                "`items`: expected at least one that can be chosen, got none; put tasks, which are "
                "the items, or exclude fewer",
            )
        if request.top_k is not None and request.top_k > count:
            raise ServiceError(
                422,
                f"`top_k`: expected 1 to {count}, the items that can be chosen, got "
                f"{request.top_k}; ask for fewer",
            )
        taken = request.taken
        if taken is not None and not (
            taken in (self._rows if request.items is None else request.items)
            and taken not in request.exclude
        ):
            raise ServiceError(
                422, f"`item_taken`: expected one of the items, got {taken!r}; check it"
            )

    def _best(
        self,
        request: Choose,
        rows: slice | Int[np.ndarray, " k"],
        out: Int[np.ndarray, " e"],
        member: int,
    ) -> Int[np.ndarray, " top_k"]:
        """The best candidates of a joint draw, or random ones."""
        if self.version.at_random:
            values = self._rng.random(len(self))[rows]
        else:
            theta = self._panel.draws[member % self.num_draws][rows]
            values = self.version.predictors(theta, request.features[0])
        values[out] = -np.inf
        top_k = request.top_k or 1
        if 1 < top_k < len(values) // 4:
            some = np.argpartition(-values, top_k)[:top_k]
            return some[np.argsort(-values[some], kind="stable")]
        return best_first(values[None], top_k)[0]

    def _share(
        self, number: int, x: Float[np.ndarray, " d"], taken: int, wins: Callable[[int], bool]
    ) -> Share:
        """Propensity of the item taken, its error, from how many draws it is; and its predictors.

        Further joint draws are looked at until the item has won 16 times, as for decisions.
        """
        others = (number + 1 + np.arange(self.num_draws - 1)).tolist()
        draws = [self._panel.draws[m % self.num_draws][taken] for m in others]
        predictors = self.version.predictors(np.stack(draws), x)
        hits = used = 0
        for member in others[: self.version.settings.propensity_draws]:
            used += 1
            hits += wins(member)
            if hits == WINS:
                break
        if not used:
            return None, None, 0, predictors
        share, error = propensity(np.array([hits]), used, np.array([hits == WINS]))
        return float(share[0]), float(error[0]), used, predictors


class Panels:
    """The panels of all versions. The engine's thread uses them; others only build new ones."""

    def __init__(
        self, database: Database, catalog: Catalog, cache: TaskCache, seed: int | None = None
    ) -> None:
        self._database, self._catalog, self._cache = database, catalog, cache
        self._seed = fresh_seed() if seed is None else seed
        self._panels: dict[tuple[str, int], ItemPanel] = {}
        self._building = threading.Lock()
        self._resume = -math.inf  # when items that have not changed may be drawn anew

    def of(self, version: Version, connection: sa.Connection) -> ItemPanel:
        """The panel of a version; a 503 if it is not built yet."""
        panel = self._panels.get((version.model, version.version))
        if panel is None:
            raise ServiceError(503, f"`model`: the items of {version.model!r} are being drawn", 1)
        if panel.scanned == -math.inf:  # it was built meanwhile
            panel.scan(connection)
        return panel

    def missing(self, model: str) -> list[Version]:
        """Versions of a model that may choose and have no panel yet."""
        serving = [v for v in self._catalog.versions_of(model) if v.share > 0 and v.ready]
        able = [version for version in serving if version.can_choose]
        return [version for version in able if (model, version.version) not in self._panels]

    def build(self, model: str) -> bool:
        """Draw for all items of a model, in the thread that calls; whether there were any to."""
        with self._building:
            missing = self.missing(model)
            for version in missing:
                panel = ItemPanel(version, self._seed + version.version)
                self._fill(panel)
                self._panels = self._panels | {(model, version.version): panel}
        return bool(missing)

    def build_used(self) -> None:
        """Draw for the items of all models that have chosen before."""
        names = {row.model for row in self._database.read(sa.select(candidates.c.model).distinct())}
        for model in names & set(self._catalog.names()):
            try:
                self.build(model)
            except Exception as error:  # decisions among actions go on
                log.error("the items of %s cannot be drawn", model, exc_info=error)

    def _fill(self, panel: ItemPanel) -> None:
        active = tasks.c.model == panel.version.model, tasks.c.retired.is_(None)
        for page in pages(self._database, PAGE, *active):
            with self._database.reading() as connection:
                self.add(connection, panel, page)

    def _states(
        self, connection: sa.Connection, panel: ItemPanel, items: Sequence[Row]
    ) -> list[TaskState | None]:
        version = panel.version
        learned = [(item, version) for item in items if item["num_learned"]]
        found = current_states(connection, self._cache, learned)
        return [found.get((item["id"], version.version)) for item in items]

    def add(self, connection: sa.Connection, panel: ItemPanel, items: Sequence[Row]) -> None:
        """Let items be chosen that the panel does not have."""
        panel.put(items, self._states(connection, panel, items), time.time())

    def note(self, items: Iterable[Row]) -> None:
        """Take note of tasks that a transaction has read or changed."""
        if self._panels:
            for item in items:
                for (model, _), panel in self._panels.items():
                    if model == item["model"]:
                        panel.note(item)

    def drop(self, items: Iterable[Row]) -> None:
        """Forget tasks that a transaction created in vain."""
        for item in items:
            for (model, _), panel in self._panels.items():
                if model == item["model"]:
                    panel.drop([item["name"]])

    def work(self, now: float, hurried: bool) -> bool:
        """Draw anew for a short time between two transactions; whether more items wait for it.

        If requests wait, few items do so too, as a program takes about as long for one as for many;
        but not new ones, which could not be chosen.
        """
        if not all(self._catalog.loaded(*key) for key in self._panels):
            self._panels = {k: p for k, p in self._panels.items() if self._catalog.loaded(*k)}
        for panel in self._panels.values():
            waits = max(SCAN_SECONDS, panel.scan_seconds / SCAN_SHARE)
            if not self._database.is_sqlite and time.monotonic() - panel.scanned > waits:
                with self._database.reading() as connection:
                    panel.scan(connection)
            few = len(panel.due) < CHUNK and all(name in panel for name in panel.due)
            if not (hurried and few and time.monotonic() - panel.turned < REST_SECONDS):
                self._draw(panel, now)
        return any(panel.due for panel in self._panels.values())

    def _draw(self, panel: ItemPanel, now: float) -> None:
        panel.turned = begin = time.monotonic()
        while (start := time.monotonic()) - begin < TURN_SECONDS:
            changed = bool(panel.due)
            items = panel.waiting() if changed or start > self._resume else []
            if not items:
                return
            with self._database.reading() as connection:
                states = self._states(connection, panel, items)
            panel.put(items, states, now)
            if not changed:
                end = time.monotonic()
                self._resume = end + (end - start) / SPARE
