"""Versions of models, made ready for decisions and rewards, and the catalog of them all."""

import contextlib
import functools
import hashlib
import json
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import sqlalchemy as sa
from jaxtyping import Float

from ..bandits.agents import AbstractAgent, ThompsonSampling
from ..bandits.decisions import TaskPolicy, TaskRequest, block_size, host_mean
from ..bandits.updates import (
    LARGE,
    MIN_ROWS,
    Forgetting,
    Observations,
    State,
    feature_scales,
    ordinary,
)
from ..encoders import Encoder
from ..evidence.base import AbstractLikelihood
from ..evidence.response import response_of
from ..files.base import load_bytes
from ..gaussian import Gaussian
from ..learning.model import Model
from ..priors.base import AbstractPrior
from ..priors.conditional import ConditionalPrior
from ..tables import listed
from .requests import Attributes, Choose, Decide, Json, ServiceError, not_found
from .settings import Settings, check_rewards
from .store import Database, Row, candidates, models, tasks, versions

MAX_CONDITIONS = 2**15  # tasks whose attributes are encoded in memory
log = logging.getLogger("diffprior.service")
REFRESH_SECONDS = 1.0  # until a version that another process has added is seen


def _named(encoder: Encoder, features: np.ndarray) -> list[Json]:
    """Raw rows of the features of columns that are used as they are."""
    names = [column.name for column in encoder.columns]
    width = len(names) + encoder.intercept
    if not encoder.plain or features.shape[1] != width:
        numbers = f", or {width} numbers" if encoder.plain else ""
        raise ValueError(
            f"`features`: expected rows of the columns {listed(names)}{numbers}, got "
            f"{features.shape[1]} numbers; features are learned from the columns, so name them"
        )
    values = features[:, int(encoder.intercept) :].tolist()
    return [dict(zip(names, row, strict=True)) for row in values]


@dataclass(eq=False)
class Version:
    """One version of a model: its prior, its settings and its share of the tasks.

    `ready` is whether its programs are compiled in this process; `saved` is the file that it was
    added from, of a model or a prior.
    """

    model: str
    seed: int
    version: int
    settings: Settings
    prior: AbstractPrior
    share: float
    created: float
    ready: bool = False
    saved: Model | AbstractPrior | None = None
    since: float = 0.0  # when the share of a version of the model last changed
    rolled_back: str | None = None  # why, if it was by itself

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features; none if they are not known."""
        return self.saved.feature_names if isinstance(self.saved, Model) else ()

    @property
    def encoder(self) -> Encoder | None:
        """How raw columns become features; None if the model was learned from arrays."""
        return self.saved.encoder if isinstance(self.saved, Model) else None

    @property
    def attribute_encoder(self) -> Encoder | None:
        """How raw columns become attributes; None if they are numbers, or there are none."""
        return self.saved.attribute_encoder if isinstance(self.saved, Model) else None

    def encode(self, request: Decide | Choose) -> None:
        """Make features of the raw rows of a request; an error names the column that is wrong.

        Where features are learned, numbers are raw rows too.
        """
        _ = request.digest  # of what was sent
        encoder = self.encoder
        if encoder is None and request.raw is not None:
            raise ServiceError(
                422,
                "`features`: expected numbers, because the model was learned from arrays, got "
                "columns; pass arrays, or learn the model from a table with dp.Logs.read",
            )
        try:
            if encoder is not None and encoder.network is not None and request.raw is None:
                request.raw = _named(encoder, request.features)
            if encoder is not None and request.raw is not None:
                request.features = encoder.encode(request.raw)
        except ValueError as error:
            raise ServiceError(422, str(error)) from error

    def condition(self, attributes: Attributes) -> np.ndarray:
        """Condition of the prior by attributes; a ValueError names what is wrong."""
        if not isinstance(self.prior, ConditionalPrior):
            raise ValueError(
                "`attributes`: expected none, because the prior was learned without, got "
                f"{attributes!r:.60}; learn it from logs with attributes, or leave them out"
            )
        encoder = self.attribute_encoder
        if encoder is None and isinstance(attributes, dict):
            raise ValueError(
                f"`attributes`: expected {self.prior.num_attributes} numbers, because the prior "
                "was learned from arrays, got columns; pass a list of numbers"
            )
        z = np.asarray(attributes if encoder is None else encoder.encode(attributes), np.float64)
        return self.prior.conditions(z.reshape(1, -1))[0]

    @cached_property
    def known_condition(self) -> Callable[[str | None], np.ndarray | None]:
        """Condition of the prior by attributes in the database; None without.

        Attributes that this version does not know count as those of the average task.
        """

        @functools.lru_cache(maxsize=MAX_CONDITIONS)
        def known(text: str | None) -> np.ndarray | None:
            if not isinstance(self.prior, ConditionalPrior):
                return None
            with contextlib.suppress(ValueError):
                if text is not None:
                    return self.condition(json.loads(text))
            return self.prior.average

        return known

    @cached_property
    def likelihood(self) -> AbstractLikelihood:
        return self.settings.make_likelihood()

    @cached_property
    def mean_reward(self) -> Callable[[np.ndarray], np.ndarray]:
        return host_mean(self.likelihood)

    def predictors(
        self, thetas: Float[np.ndarray, "n d"], x: Float[np.ndarray, " f"]
    ) -> Float[np.ndarray, " n"]:
        """Linear predictors of one row of features, or eta of a response, by parameters."""
        response, x = response_of(self.likelihood), x.astype(thetas.dtype)
        return thetas @ x if response is None else response.paired(thetas, x[None]).copy()

    @cached_property
    def policy(self) -> TaskPolicy:
        agent = self.settings.make_agent(self.prior)
        if isinstance(agent, ThompsonSampling) and not self.is_control:
            return self.posterior_policy
        return self._policy_of(agent)

    @cached_property
    def _thompson(self) -> ThompsonSampling:
        return ThompsonSampling(self.settings.make_sampler(self.prior), self.likelihood)

    @cached_property
    def posterior_policy(self) -> TaskPolicy:
        """The program that draws parameters of many tasks at once."""
        return self._policy_of(self._thompson)

    @cached_property
    def panel_policy(self) -> TaskPolicy:
        """What draws as many parameters of many items at once as there are joint draws."""
        return self._policy_of(self._thompson, self.settings.panel_draws - 1)

    @property
    def can_choose(self) -> bool:
        return self.settings.sampler not in ("linucb", "epsilon-greedy", "prior-mean")

    def check_choices(self) -> None:
        if not self.can_choose:
            raise ServiceError(
                422,
                "`sampler`: expected one that draws from the posterior, or random, for choices, "
                f"got {self.settings.sampler}; put a version with another one",
            )

    def _policy_of(self, agent: AbstractAgent, num_others: int | None = None) -> TaskPolicy:
        if num_others is None:
            num_others = min(self.settings.propensity_draws, block_size(agent))
        return TaskPolicy(agent, self.empty.evidence, self.settings.max_rows, num_others)

    @property
    def at_random(self) -> bool:
        """Whether actions are chosen at random by design."""
        return self.settings.sampler == "random"

    @property
    def is_control(self) -> bool:
        """Whether it serves a group for comparison, whose share and tasks stay."""
        return self.settings.sampler in ("random", "prior-mean")

    @cached_property
    def moments(self) -> Gaussian:
        return self.prior.moments()

    @property
    def dim(self) -> int:
        return self.prior.dim

    @cached_property
    def num_features(self) -> int:
        return self.likelihood.num_features(self.dim)

    @cached_property
    def empty(self) -> State:
        """Evidence of a new task, with room for more rows as they come."""
        return State.of(self.likelihood.empty(self.dim), self.settings.max_rows)

    @cached_property
    def learns_as(self) -> str:
        """What is equal of versions that learn the same evidence, whatever their priors."""
        options = sorted(self.settings.likelihood_options.items())
        return json.dumps([self.settings.likelihood, options, self.dim])

    @cached_property
    def _scales(self) -> tuple[np.ndarray, float]:
        """Standard deviations of the prior, and the size above which observations are tested."""
        stds = feature_scales(self.likelihood, self.moments)
        return stds, LARGE * float(getattr(self.likelihood, "noise_std", 1.0))

    @cached_property
    def _forgetting(self) -> Forgetting | None:
        return self.settings.make_forgetting()

    def clock(self, num_decisions: int, now: float) -> float:
        """The current time in units of the half-life; 0 without a half-life."""
        if self._forgetting is None:
            return 0.0
        return now if self._forgetting.in_seconds else float(num_decisions)

    def draw_request(
        self, state: State, task: tuple[int, str | None], number: int, clock: float
    ) -> TaskRequest:
        """Request for the draws of a decision at this time, of a task's seed and attributes."""
        temperature = 1.0
        if self._forgetting is not None:
            temperature = self._forgetting.temperature(state.moment, clock)
        seed, given = task[0], self.known_condition(task[1])
        return TaskRequest(state.leaves, state.structure, seed, number, temperature, given)

    def learn(self, state: State, phi: np.ndarray, reward: float, clock: float) -> State:
        """Evidence with one more observation at this time, in at most `max_rows` rows."""
        try:
            dtype = np.dtype(self.moments.mean.dtype)
            new = Observations(phi, reward, self.num_features, dtype)
            check_rewards(self.likelihood, new.rewards)
        except ValueError as error:
            raise ServiceError(422, str(error)) from error
        if self._forgetting is not None:
            state = self._forgetting.faded(state, clock)
        try:
            after = state.add(new, self.settings.max_rows, self.moments)
        except ValueError as error:  # of a response, which has all rows that it may have
            raise ServiceError(422, str(error)) from error
        stds, limit = self._scales
        if new.largest(stds) > limit and not self._leaves_room(after, new):
            raise ServiceError(
                422,
                f"`reward`: expected an observation given which parameters can be drawn, got {new};"
                " rescale features and rewards",
            )
        return after

    def warm_up(self) -> None:
        """Compile what decisions and rewards need, with made-up ones."""
        self.policy([self.draw_request(self.empty, (0, None), 0, 0.0)])
        most, capacity = self.settings.max_rows, MIN_ROWS
        while capacity < most:
            state = State.of(self.likelihood.empty(self.dim, capacity), most)
            self.learn(state, np.ones(self.num_features), 0.0, 1.0)
            capacity *= 2
        self.ready = True

    def warm_up_bounds(self) -> None:
        """Compile what the reward after the first `max_rows` of a task needs."""
        most = self.settings.max_rows
        State.of(self.likelihood.empty(self.dim, most), most).warm_up(most, self.moments)

    def _leaves_room(self, state: State, new: Observations) -> bool:
        """Whether draws succeed now, after the same observation again and after ordinary ones."""
        most, dtype = self.settings.max_rows, np.dtype(self.moments.mean.dtype)
        following = (new, *ordinary(self._scales[0], dtype))
        for each in (state, *(state.add(one, most, self.moments) for one in following)):
            requests = [self.draw_request(each, (0, None), n, each.moment) for n in range(4)]
            if np.any(self.posterior_policy(requests).failed[:, 0]):
                return False
        return True


class Catalog:
    """All versions of all models, reread when they have changed.

    New shares of a model take effect once all versions with a share are ready; until then the
    previous ones hold, so that no decision waits for a version that another process has added.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._versions: dict[tuple[str, int], Version] = {}
        self._by_model: dict[str, list[Version]] = {}
        self._serving: dict[str, list[tuple[Version, float]]] = {}
        self._retired: set[tuple[str, int]] = set()
        self.broken: dict[tuple[str, int], str] = {}  # versions that cannot serve, and why
        self._read = 0.0
        self.log_bytes: Counter[str] = Counter()  # of models with a quota, since they were measured
        self.refresh()

    def refresh(self) -> None:
        """Read new versions; only the share of a version ever changes."""
        with self._database.transaction() as connection:
            self.refresh_in(connection)

    def refresh_in(self, connection: sa.Connection, max_age: float = 0.0) -> None:
        """Read new versions in this transaction, if the last time is a while ago."""
        if time.monotonic() - self._read < max_age:
            return
        light = [c for c in versions.c if c.name not in ("prior", "settings")]
        seeds = {row.name: row.seed for row in connection.execute(sa.select(models))}
        found = {}
        for row in connection.execute(sa.select(*light)).all():
            key = (row.model, row.version)
            if row.retired is not None:
                self._retired.add(key)
                self.broken.pop(key, None)
            elif key not in self.broken:
                try:  # compiled programs of a version stay
                    version = self._versions.get(key) or _read_version(
                        connection, key, seeds[row.model]
                    )
                except Exception as error:
                    self._log_broken(key, error)
                    continue
                version.share, version.since = row.share, row.since
                version.rolled_back, found[key] = row.rolled_back, version
        self._read = time.monotonic()
        self._use(found)

    def mark_broken(self, version: Version, error: Exception) -> None:
        """Take a version that cannot serve out of service in this process."""
        key = (version.model, version.version)
        self._log_broken(key, error)
        self._use({k: v for k, v in self._versions.items() if k != key})

    def _log_broken(self, key: tuple[str, int], error: Exception) -> None:
        self.broken[key] = f"version {key[1]} of {key[0]} cannot serve: {error}".splitlines()[0]
        log.error("%s; retire it", self.broken[key], exc_info=error)

    def _use(self, found: dict[tuple[str, int], Version]) -> None:
        by_model = defaultdict(list)
        for name, number in sorted(found, reverse=True):
            by_model[name].append(found[name, number])
        for versions_of_model in by_model.values():
            if not any(version.share > 0 for version in versions_of_model):
                versions_of_model[0].share = 1.0  # in place of those that cannot serve
        self._versions, self._by_model = found, dict(by_model)
        self.serve_ready()

    def pending(self) -> list[Version]:
        """Versions that have a share of the tasks and are not ready yet."""
        return [v for v in self._versions.values() if v.share > 0 and not v.ready]

    def serve_ready(self) -> None:
        """Apply the shares of every model whose versions are ready."""
        waiting = {version.model for version in self.pending()}
        ready = {
            model: [(v, v.share) for v in sorted(found, key=lambda v: not v.is_control)]
            for model, found in self._by_model.items()
            if model not in waiting
        }
        self._serving = self._serving | ready

    def versions_of(self, model: str) -> list[Version]:
        """Versions of a model, newest first."""
        if model not in self._by_model:
            if any(name == model for name, _ in self.broken):
                raise ServiceError(503, f"`model`: no version of {model!r} can serve", 1)
            raise not_found("model", model)
        return self._by_model[model]

    def newest(self, model: str) -> Version:
        """The newest version of a model; a ValueError lists the models if there is none."""
        if model not in self._by_model:
            listed = ", ".join(self.names()) or "none"
            raise ValueError(f"`model`: expected a model of the database ({listed}), got {model!r}")
        return self._by_model[model][0]

    def serving(self, model: str) -> list[Version]:
        """Versions of a model that serve tasks and are no controls, newest first."""
        found = self._by_model.get(model, ())
        return [v for v in found if v.share > 0 and not v.is_control]

    def version(self, model: str, number: int) -> Version:
        if (model, number) not in self._versions:
            raise not_found("version", f"{model}/{number}")
        return self._versions[model, number]

    def loaded(self, model: str, number: int) -> bool:
        """Whether a version can be used; those that are retired or broken cannot."""
        return (model, number) in self._versions

    def version_in(self, connection: sa.Connection, model: str, number: int, task: str) -> Version:
        """The version that made a decision; if it is gone, the one that serves the task now."""
        key = (model, number)
        if key not in self._versions and key not in self._retired | self.broken.keys():
            self.refresh_in(connection)  # another process has just added it
        return self._versions.get(key) or self.for_task(model, task)

    def names(self) -> list[str]:
        return sorted({name for name, _ in self._versions.keys() | self.broken.keys()})

    def for_task(self, model: str, task: str) -> Version:
        """The version that serves a task.

        It is the same one while shares stay the same; when the share of the newest version grows,
        its tasks stay with it.
        """
        self.versions_of(model)
        if model not in self._serving:
            raise ServiceError(503, f"`model`: {model!r} is being compiled; try again", 1)
        place, found = _place(model, task), self._serving[model]
        total = 0.0
        for version, share in found:
            total += share
            if place < total:
                return version
        return next(version for version, share in found[::-1] if share > 0)

    def check_attributes(self, model: str, attributes: Attributes) -> None:
        """Reject attributes that a serving version does not take."""
        serving = [v for v in self.versions_of(model) if v.share > 0]
        taking = [v for v in serving if isinstance(v.prior, ConditionalPrior)]
        for version in taking or serving[:1]:
            try:
                version.condition(attributes)
            except ValueError as error:
                raise ServiceError(422, str(error)) from error

    def quota(self, model: str) -> float | None:
        found = self._by_model.get(model)
        gigabytes = found[0].settings.quota_gb if found else None
        return None if gigabytes is None else 1e9 * gigabytes

    def check_quota(self, model: str) -> None:
        """Reject what would be logged if the log of a model is full."""
        quota = self.quota(model)
        if quota is not None and self.log_bytes[model] >= quota:
            raise ServiceError(
                507,
                f"`model`: the log of {model!r} has reached its quota of {quota / 1e9:g} GB; prune "
                "it, or add a version with a higher `quota_gb`",
            )

    def measure_log(self, model: str) -> None:
        """Read how large the log of a model with a quota is: others write and prune it too."""
        if self.quota(model) is None:
            return
        t, c = tasks.c, candidates.c
        rows = t.num_bytes + sa.func.coalesce(sa.func.length(t.attributes), 0)
        parts = ((rows, t.model), (sa.func.length(c["items"]), c.model))
        queries = [sa.select(sa.func.sum(size)).where(of == model) for size, of in parts]
        self.log_bytes[model] = sum(int(self._database.read_value(q) or 0) for q in queries)

    def candidate(self, model: str, settings: Settings, saved: object) -> Version:
        """A version that serves no tasks, for compiling its programs before it is added."""
        settings = settings.with_likelihood_of(saved)
        return Version(model, 0, 0, settings, _checked(settings, saved)[1], 0.0, 0.0)

    def put(self, model: str, settings: Settings, saved: object, share: float) -> Version:
        """Add a version, and a model if it is the first; others but controls give it `share`.

        Nothing changes if it is the newest version already.
        """
        settings = settings.with_likelihood_of(saved)
        checked, _ = _checked(settings, saved)
        content = checked.to_bytes()
        newest = next(iter(self._by_model.get(model, ())), None)
        known = None if newest is None or newest.settings != settings else newest.saved
        if newest is not None and known is not None and known.digest == checked.digest:
            return newest
        with self._database.transaction() as connection:
            now = time.time()
            new: Row = {"name": model, "seed": secrets.randbits(62), "created": now}
            connection.execute(self._database.insert_if_absent(models).values(**new))
            locked = sa.select(models).where(models.c.name == model).with_for_update()
            connection.execute(locked).one()
            latest = sa.select(sa.func.max(versions.c.version)).where(versions.c.model == model)
            number = (connection.execute(latest).scalar() or 0) + 1
            held = self._held(model, number)
            left = 1.0 - sum(held.values())
            share = left if number == 1 else min(share, left)
            scaled = versions.c.share * ((left - share) / left if left > 0 else 0.0)
            changed = versions.update().where(versions.c.model == model)
            connection.execute(changed.values(since=now))
            connection.execute(changed.where(versions.c.version.not_in(held)).values(share=scaled))
            new = {"model": model, "version": number, "share": share, "created": now, "since": now}
            new |= {"settings": settings.model_dump_json(), "prior": content}
            connection.execute(versions.insert().values(**new))
        self.refresh()
        return self.version(model, number)

    def _held(self, model: str, number: int) -> dict[int, float]:
        """Shares of controls, which stay when that of another version changes."""
        found = self._by_model.get(model, ())
        return {v.version: v.share for v in found if v.is_control and v.version != number}

    def set_share(
        self, model: str, number: int, share: float, reason: tuple[int, str] | None = None
    ) -> None:
        """Give a version this share of the tasks; the others share the rest proportionally, but for
        controls, which keep theirs. `reason` is why another version is rolled back by itself.
        """
        new = self.shares_after(model, number, share)
        with self._database.transaction() as connection:
            _write_shares(connection, model, new)
            if reason is not None:
                own = _is(model, reason[0])
                connection.execute(versions.update().where(own).values(rolled_back=reason[1]))
        self.refresh()

    def shares_after(self, model: str, number: int, share: float) -> dict[int, float]:
        """The shares of all versions but controls, once this one has this share."""
        self.version(model, number)
        held = self._held(model, number)
        left = 1.0 - sum(held.values())
        others = [v for v in self.versions_of(model) if v.version not in {number, *held}]
        if not others and share < left:
            raise ServiceError(409, "`share`: expected 1, because there is no other version")
        share = min(share, left)
        rest = sum(v.share for v in others)
        latest = max((v.version for v in others), default=0)
        new = {number: share}
        for other in others:
            part = other.share / rest if rest > 0 else float(other.version == latest)
            new[other.version] = (left - share) * part
        return new

    def retire(self, model: str, number: int) -> None:
        """Take a version out of service for good, also one that cannot be loaded; others share
        its tasks.
        """
        with self._database.transaction() as connection:
            gone = versions.update().where(_is(model, number))
            if not connection.execute(gone.values(retired=time.time(), share=0.0)).rowcount:
                raise ValueError(
                    f"`version`: expected one of {model!r}, found none of number {number}; check it"
                )
            query = sa.select(versions.c.version, versions.c.share)
            query = query.where(versions.c.model == model, versions.c.retired.is_(None))
            left = dict(connection.execute(query).all())
            total = sum(left.values())
            newest = {version: float(version == max(left)) for version in left}
            new = {v: share / total for v, share in left.items()} if total > 0 else newest
            _write_shares(connection, model, new)
        self.refresh()

    def roll_back(self, model: str) -> None:
        """Return all tasks to the version before the newest one that serves any."""
        before = self.before(model)
        if before is None:
            raise ServiceError(409, f"`model`: {model!r} has no earlier version to go back to")
        self.set_share(model, before.version, 1.0)

    def before(self, model: str) -> Version | None:
        """The version before the newest one that serves any tasks, if there is one."""
        found, serving = self.versions_of(model), self.serving(model)
        older = [v for v in found if serving and v.version < serving[0].version]
        return next((v for v in older if not v.is_control), None)


def _is(model: str, number: int) -> sa.ColumnElement[bool]:
    return (versions.c.model == model) & (versions.c.version == number)


def _write_shares(connection: sa.Connection, model: str, shares: dict[int, float]) -> None:
    since = versions.update().where(versions.c.model == model).values(since=time.time())
    connection.execute(since)
    for number, share in shares.items():
        connection.execute(versions.update().where(_is(model, number)).values(share=share))


def _read_version(connection: sa.Connection, key: tuple[str, int], seed: int) -> Version:
    row = connection.execute(sa.select(versions).where(_is(*key))).one()
    settings = Settings(**json.loads(row.settings))
    saved, prior = _checked(settings, load_bytes(row.prior))
    return Version(key[0], seed, key[1], settings, prior, row.share, row.created, saved=saved)


def _place(model: str, task: str) -> float:
    """A fixed number in [0, 1) of a task."""
    digest = hashlib.blake2b(f"{model}\0{task}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def task_seed(model_seed: int, task: str) -> int:
    """The seed of a task; a `Bandit` with this seed makes the same decisions."""
    text = f"{model_seed}\0{task}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def _checked(settings: Settings, saved: object) -> tuple[Model | AbstractPrior, AbstractPrior]:
    """The model or prior in a file, and its prior."""
    prior = saved.prior if isinstance(saved, Model) else saved
    if not isinstance(prior, AbstractPrior) or not isinstance(saved, Model | AbstractPrior):
        raise ValueError(
            f"`prior`: expected the file of a model or a prior, got one of a "
            f"{type(saved).__name__}; `diffprior learn` or `diffprior fit` writes one"
        )
    settings.make_agent(prior)
    settings.make_likelihood().empty(prior.dim)
    return saved, prior
