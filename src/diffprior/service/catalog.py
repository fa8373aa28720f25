"""The models in the database, made ready for decisions; which version serves a task."""

import hashlib
import json
import secrets
import time
from collections import defaultdict
from typing import Any

import sqlalchemy as sa

from ..files.base import load_bytes
from ..priors.base import AbstractPrior
from .requests import ServiceError, not_found
from .settings import Settings
from .store import Database, models, versions
from .version import Version

REFRESH_SECONDS = 1.0  # how soon a version that another process has put is seen


class Catalog:
    """All versions of all models, read again when they have changed.

    The shares of a model hold from when all versions that have one are ready; until then those of
    before do, so that no decision waits for a version that another process has put.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._versions: dict[tuple[str, int], Version] = {}
        self._by_model: dict[str, list[Version]] = {}
        self._serving: dict[str, list[tuple[Version, float]]] = {}
        self._read = 0.0
        self.refresh()

    def refresh(self) -> None:
        """Read what is new; a version never changes but for its share."""
        with self._database.transaction() as connection:
            self.refresh_in(connection)

    def refresh_if_old(self, connection: sa.Connection) -> None:
        """Read again if the last time is a while ago."""
        if time.monotonic() - self._read > REFRESH_SECONDS:
            self.refresh_in(connection)

    def refresh_in(self, connection: sa.Connection) -> None:
        """Read what is new, in this transaction."""
        light = [c for c in versions.c if c.name not in ("prior", "settings")]
        seeds = {row.name: row.seed for row in connection.execute(sa.select(models))}
        found = {}
        for row in connection.execute(sa.select(*light)):
            key = (row.model, row.version)
            known = self._versions.get(key) or _read_version(connection, key, seeds[row.model])
            found[key] = _with_share(known, row.share)
        by_model = defaultdict(list)
        for name, number in sorted(found, reverse=True):
            by_model[name].append(found[name, number])
        self._versions, self._by_model = found, dict(by_model)
        self._read = time.monotonic()
        self.serve_ready()

    def pending(self) -> list[Version]:
        """Versions that have a share of the tasks and are not ready yet."""
        return [v for v in self._versions.values() if v.share > 0 and not v.ready]

    def serve_ready(self) -> None:
        """From now on, keep to the shares of every model whose versions are ready."""
        waiting = {version.model for version in self.pending()}
        ready = {
            model: [(version, version.share) for version in found]
            for model, found in self._by_model.items()
            if model not in waiting
        }
        self._serving = self._serving | ready

    def versions_of(self, model: str) -> list[Version]:
        """Versions of a model, newest first.

        Raises:
            ServiceError: There is no such model.
        """
        if model not in self._by_model:
            raise not_found("model", model)
        return self._by_model[model]

    def version(self, model: str, number: int) -> Version:
        """One version of a model."""
        if (model, number) not in self._versions:
            raise not_found("version", f"{model}/{number}")
        return self._versions[model, number]

    def names(self) -> list[str]:
        """Names of all models."""
        return sorted({name for name, _ in self._versions})

    def for_task(self, model: str, task: str) -> Version:
        """The version that serves a task: always the same one while shares stay as they are, and
        when the share of the newest grows, the tasks that it has remain with it.

        Raises:
            ServiceError: There is no such model, or none of its versions is ready.
        """
        self.versions_of(model)
        if model not in self._serving:
            raise ServiceError(503, f"`model`: {model!r} is being compiled; try it again", 1)
        place, found = _place(model, task), self._serving[model]
        total = 0.0
        for version, share in found:
            total += share
            if place < total:
                return version
        return next(version for version, share in found[::-1] if share > 0)

    def candidate(self, model: str, settings: Settings, prior: Any) -> Version:
        """A version that serves no tasks, to compile what one like it needs before it does.

        Raises:
            ValueError: It is no prior, or none that the settings can be used with.
        """
        _check_prior(settings, prior)
        return Version(model, 0, 0, settings, prior, 0.0, 0.0)

    def put(self, model: str, settings: Settings, prior: Any, share: float) -> Version:
        """Add a version, and a model if it is the first; others give up `share` of their tasks."""
        _check_prior(settings, prior)
        with self._database.transaction() as connection:
            now = time.time()
            new = {"name": model, "seed": secrets.randbits(62), "created": now}
            connection.execute(self._database.insert_if_absent(models).values(**new))
            locked = sa.select(models).where(models.c.name == model).with_for_update()
            connection.execute(locked).one()
            latest = sa.select(sa.func.max(versions.c.version)).where(versions.c.model == model)
            number = (connection.execute(latest).scalar() or 0) + 1
            share = 1.0 if number == 1 else share
            scaled = versions.c.share * (1.0 - share)
            connection.execute(
                versions.update().where(versions.c.model == model).values(share=scaled)
            )
            connection.execute(
                versions.insert().values(
                    model=model,
                    version=number,
                    settings=settings.model_dump_json(),
                    prior=prior.to_bytes(),
                    share=share,
                    created=now,
                )
            )
        self.refresh()
        return self.version(model, number)

    def set_share(self, model: str, number: int, share: float) -> None:
        """Give a version this share of the tasks; the others share the rest as before."""
        self.version(model, number)
        others = [v for v in self.versions_of(model) if v.version != number]
        if not others and share < 1:
            raise ServiceError(409, "`share`: expected 1, because there is no other version")
        rest = sum(v.share for v in others)
        latest = max((v.version for v in others), default=0)
        new = {number: share}
        for other in others:
            part = other.share / rest if rest > 0 else float(other.version == latest)
            new[other.version] = (1 - share) * part
        with self._database.transaction() as connection:
            for version, value in new.items():
                where = (versions.c.model == model) & (versions.c.version == version)
                connection.execute(versions.update().where(where).values(share=value))
        self.refresh()

    def roll_back(self, model: str) -> Version:
        """Take all tasks from the newest version that has any, and give them to the one before."""
        serving = [v for v in self.versions_of(model) if v.share > 0]
        before = [v for v in self.versions_of(model) if v.version < serving[0].version]
        if not before:
            raise ServiceError(409, f"`model`: {model!r} has no earlier version to go back to")
        self.set_share(model, before[0].version, 1.0)
        return self.version(model, before[0].version)


def _read_version(connection: sa.Connection, key: tuple[str, int], seed: int) -> Version:
    where = (versions.c.model == key[0]) & (versions.c.version == key[1])
    row = connection.execute(sa.select(versions).where(where)).one()
    settings = Settings(**json.loads(row.settings))
    prior = load_bytes(row.prior)
    return Version(key[0], seed, key[1], settings, prior, row.share, row.created)


def _with_share(version: Version, share: float) -> Version:
    object.__setattr__(version, "share", share)  # all else, compiled programs too, stays
    return version


def _place(model: str, task: str) -> float:
    """A number in [0, 1) that a task keeps."""
    digest = hashlib.blake2b(f"{model}\0{task}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def task_seed(model_seed: int, task: str) -> int:
    """The seed of a task: what a `Bandit` of the same decisions is made with."""
    text = f"{model_seed}\0{task}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def _check_prior(settings: Settings, prior: Any) -> None:
    if not isinstance(prior, AbstractPrior):
        raise ValueError(
            f"`prior`: expected the file of a prior, got one of a {type(prior).__name__}; "
            "`diffprior fit` or `diffprior learn` writes one"
        )
    settings.make_agent(prior)
