"""Who may do what: bearer tokens, of which only a digest is kept."""

import hashlib
import hmac
import json
import secrets
import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from .database import Database
from .schema import tokens

RIGHTS = ("decide", "reward", "read", "admin")
TRUST_SECONDS = 5.0  # how long a revoked token may still be taken for good
MAX_KNOWN = 10_000  # tokens in memory
ID_CHARS = 8


@dataclass(frozen=True)
class Token:
    """What a caller may do. `model` is None for all models."""

    id: str | None
    rights: tuple[str, ...]
    model: str | None

    def allows(self, right: str, model: str | None) -> bool:
        """Whether the token has a right, for a model or (None) beyond any one model."""
        return right in self.rights and (self.model is None or self.model == model)

    @property
    def models(self) -> tuple[str, ...] | None:
        """Models whose decisions the token may see; None for all."""
        return None if self.model is None else (self.model,)


EVERYTHING = Token(None, RIGHTS, None)  # a caller on the same machine, where no token is needed


def create_token(
    database: Database,
    rights: tuple[str, ...] = RIGHTS,
    model: str | None = None,
    max_tasks: int = 1_000_000,
) -> str:
    """Make a token and return its text, which cannot be had again.

    Args:
        database: Where its digest is kept.
        rights: Some of decide, reward, read, admin.
        model: The model that it is for; None for all.
        max_tasks: How many tasks may come into being by it.

    Raises:
        ValueError: There is no such right.
    """
    unknown = set(rights) - set(RIGHTS)
    if unknown or not rights:
        raise ValueError(
            f"`rights`: expected some of {', '.join(RIGHTS)}, got {sorted(unknown)}; pick those"
        )
    name, secret = secrets.token_hex(ID_CHARS // 2), secrets.token_urlsafe(32)
    with database.transaction() as connection:
        connection.execute(
            tokens.insert().values(
                id=name,
                digest=_digest(secret),
                rights=json.dumps(list(rights)),
                model=model,
                max_tasks=max_tasks,
                num_tasks=0,
                created=time.time(),
                revoked=False,
            )
        )
    return f"dp_{name}_{secret}"


def revoke_token(database: Database, name: str) -> bool:
    """Refuse a token from now on, by the part of it between `dp_` and the next `_`."""
    with database.transaction() as connection:
        where = tokens.c.id == name
        return bool(connection.execute(tokens.update().where(where).values(revoked=True)).rowcount)


def any_token(database: Database) -> bool:
    """Whether there is a token that is not revoked."""
    with database.reading() as connection:
        query = sa.select(tokens.c.id).where(tokens.c.revoked.is_(False)).limit(1)
        return connection.execute(query).first() is not None


class Tokens:
    """Checks tokens, with those of the last seconds in memory."""

    def __init__(self, database: Database, *, required: bool) -> None:
        self._database = database
        self._required = required
        self._known: dict[str, tuple[float, Any]] = {}

    def in_memory(self, header: str | None) -> bool:
        """Whether `check` needs no look into the database."""
        name, _ = _parsed(header)
        return name is None or self._known.get(name, (0.0, None))[0] > _oldest()

    def check(self, header: str | None) -> Token | None:
        """The token of an `Authorization` header, or None if it is missing or wrong."""
        if header is None:
            return None if self._required else EVERYTHING
        name, secret = _parsed(header)
        row = None if name is None else self._row(name)
        expected = row.digest if row is not None else _digest("")
        if not hmac.compare_digest(expected, _digest(secret)) or row is None or row.revoked:
            return None
        return Token(row.id, tuple(json.loads(row.rights)), row.model)

    def _row(self, name: str) -> Any:
        read, row = self._known.get(name, (0.0, None))
        if read <= _oldest():
            with self._database.reading() as connection:
                row = connection.execute(sa.select(tokens).where(tokens.c.id == name)).first()
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[name] = (time.monotonic(), row)
        return row


def _oldest() -> float:
    """When a token must have been read to be trusted."""
    return time.monotonic() - TRUST_SECONDS


def _parsed(header: str | None) -> tuple[str | None, str]:
    """Id and secret of a token; None if it is not of the form of one."""
    kind, _, text = (header or "").partition(" ")
    parts = text.strip().split("_", 2)
    if kind.lower() != "bearer" or len(parts) != 3 or parts[0] != "dp" or len(parts[1]) != ID_CHARS:
        return None, ""
    return parts[1], parts[2]


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
