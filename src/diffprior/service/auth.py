"""Bearer tokens: who may do what. Only a digest of each token is stored."""

import asyncio
import hashlib
import hmac
import json
import re
import secrets
import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from .requests import ServiceError
from .store import Database, Row, read_rows, tokens

RIGHTS = ("decide", "reward", "read", "admin")
TRUST_SECONDS = 5.0  # how long a revoked token may still be accepted
MAX_KNOWN = 10_000  # tokens in memory
ID = r"(?P<id>[0-9a-f]{8})"
BEARER = re.compile(rf"(?i:bearer) +dp_{ID}_(?P<secret>\S+) *")
SESSION = re.compile(rf"(?P<about>{ID}\.(?P<expires>[0-9]{{1,12}}))\.(?P<seal>[0-9a-f]{{64}})")
SESSION_SECONDS = 12 * 3600.0  # that a sign-in lasts


@dataclass(frozen=True)
class Token:
    """Rights of a caller. `model` is None for all models; `id` is None where none is required."""

    id: str | None
    rights: tuple[str, ...]
    model: str | None

    def allows(self, right: str, model: str | None = None) -> bool:
        """Whether the token has a right for a model; with None for any model at all."""
        return right in self.rights and (None in (model, self.model) or self.model == model)

    @property
    def models(self) -> tuple[str, ...] | None:
        """Models whose decisions the token may see; None for all."""
        return None if self.model is None else (self.model,)


LOCAL = Token(None, RIGHTS, None)  # a caller on the same machine, where no token is required


def create_token(
    database: Database,
    rights: tuple[str, ...] = RIGHTS,
    model: str | None = None,
    max_tasks: int = 1_000_000,
) -> str:
    """Create a token and return its text, which cannot be recovered later."""
    unknown = set(rights) - set(RIGHTS)
    if unknown or not rights:
        raise ValueError(
            f"`rights`: expected some of {', '.join(RIGHTS)}, got {sorted(unknown)}; pick those"
        )
    name, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    row: Row = {"id": name, "digest": _digest(secret), "rights": json.dumps(list(rights))}
    row |= {"model": model, "max_tasks": max_tasks, "num_tasks": 0}
    row |= {"created": time.time(), "revoked": False}
    with database.transaction() as connection:
        connection.execute(tokens.insert().values(row))
    return f"dp_{name}_{secret}"


def revoke_token(database: Database, name: str) -> bool:
    """Revoke a token by its id, the part between `dp_` and the next `_`; False if unknown."""
    with database.transaction() as connection:
        where = tokens.c.id == name
        return bool(connection.execute(tokens.update().where(where).values(revoked=True)).rowcount)


def list_tokens(database: Database) -> list[Row]:
    """All tokens without their digests, oldest first."""
    shown = [column for column in tokens.c if column.name != "digest"]
    with database.reading() as connection:
        return read_rows(connection, sa.select(*shown).order_by(tokens.c.created))


def any_token(database: Database) -> bool:
    """Whether there is a token that is not revoked."""
    query = sa.select(tokens.c.id).where(tokens.c.revoked.is_(False)).limit(1)
    return bool(database.read(query))


class Tokens:
    """Checks the tokens of requests; those used in the last seconds are in memory."""

    def __init__(self, database: Database, *, required: bool) -> None:
        self._database = database
        self.required = required  # whether callers need a token
        self._known: dict[str, tuple[float, Any]] = {}

    def check(self, header: str | None) -> Token | None:
        """Token of an `Authorization` header; None if it is missing or wrong."""
        if header is None:
            return None if self.required else LOCAL
        name, secret = _parse(header)
        row = None if name is None else self._row(name)
        expected = row.digest if row is not None else _digest("")
        if not hmac.compare_digest(expected, _digest(secret)) or row is None or row.revoked:
            return None
        return _token(row)

    def session(self, secret: str) -> str | None:
        """A cookie that stands for a token for half a day, and opens pages only; None if invalid.

        Every process can check it, and it ends with the token.
        """
        token = self.check(f"Bearer {secret}")
        if token is None or token.id is None:
            return None
        about = f"{token.id}.{time.time() + SESSION_SECONDS:.0f}"
        return f"{about}.{_seal(self._row(token.id).digest, about)}"

    def check_session(self, cookie: str) -> Token | None:
        """The token that a cookie stands for; None if it is wrong or has expired."""
        parts = SESSION.fullmatch(cookie)
        row = self._row(parts["id"]) if parts else None
        if parts is None or row is None or row.revoked or int(parts["expires"]) < time.time():
            return None
        sealed = hmac.compare_digest(parts["seal"], _seal(row.digest, parts["about"]))
        return _token(row) if sealed else None

    async def identify(self, header: str | None) -> Token:
        """Token of an `Authorization` header. The event loop does not wait for the database."""
        header = header or None
        name, _ = _parse(header)
        quick = name is None or self._is_known(name)
        token = self.check(header) if quick else await asyncio.to_thread(self.check, header)
        if token is None:
            raise ServiceError(401, "expected a valid token: send `Authorization: Bearer dp_...`")
        return token

    async def authorize(self, header: str | None, right: str, model: str | None = None) -> Token:
        """Token of an `Authorization` header, which has a right."""
        token = await self.identify(header)
        if not token.allows(right, model):
            raise ServiceError(
                403, f"the token lacks the right to {right} here; ask for one that has"
            )
        return token

    def _is_known(self, name: str) -> bool:
        return self._known.get(name, (0.0, None))[0] > time.monotonic() - TRUST_SECONDS

    def _row(self, name: str) -> Any:
        if self._is_known(name):
            return self._known[name][1]
        row = next(iter(self._database.read(sa.select(tokens).where(tokens.c.id == name))), None)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[name] = (time.monotonic(), row)
        return row


def _token(row: Any) -> Token:
    return Token(row.id, tuple(json.loads(row.rights)), row.model)


def _parse(header: str | None) -> tuple[str | None, str]:
    """Id and secret of a token; id None if it is malformed."""
    parts = BEARER.fullmatch(header or "")
    return (parts["id"], parts["secret"]) if parts else (None, "")


def _seal(digest: str, text: str) -> str:
    return hmac.new(digest.encode(), f"page {text}".encode(), hashlib.sha256).hexdigest()


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
