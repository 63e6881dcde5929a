"""Bearer tokens with scopes, an expiry and quotas.

A secret looks like `collage_<id>_<32 random bytes>` and is shown once. Only its SHA-256 is stored: with
256 random bits, a slow password hash would add nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from collage.cost_db.costs.row import now
from collage.cost_db.database import CostDatabase
from collage.cost_db.plain_text import plain
from collage.cost_db.tables import tokens
from collage.partitioner.errors import BadInputError

SCOPES = ("read", "tune", "admin")

_PREFIX = "collage"
_NO_HASH = "0" * 64


@dataclass(frozen=True)
class Quotas:
    """How much a token may use; None is without limit."""

    active_jobs: int | None = None  # jobs that wait or run at once (checked by `JobStore.create`)
    running_jobs: int | None = None  # jobs that run at once; more wait (kept by `JobStore.next_queued`)
    stored_bytes: int | None = None  # size of all models posted (checked by `ModelStore.add`)
    requests_per_minute: int | None = None  # for the server to enforce


@dataclass(frozen=True)
class Token:
    """A token without its secret. `id` is the owner of all that is done with it."""

    id: str
    name: str
    scopes: frozenset[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    quotas: Quotas

    @property
    def is_valid(self) -> bool:
        """Neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now() < self.expires_at)


class TokenStore:
    """Tokens. Safe from many threads and processes."""

    def __init__(self, database: CostDatabase) -> None:
        self._connections = database.connections

    def create(
        self,
        name: str,
        scopes: Iterable[str],
        expires_at: datetime | None = None,
        quotas: Quotas | None = None,
    ) -> tuple[Token, str]:
        """Make a token.

        Args:
            name: of its user, as people will see it.
            scopes: some of `SCOPES`.
            expires_at: with time zone; None for never.
            quotas: limits of use.

        Returns:
            The token, and its secret, which is not stored.

        Raises:
            BadInputError: a scope is unknown, the time is past or a quota is negative.
        """
        wanted = frozenset(scopes)
        if not wanted or wanted - set(SCOPES):
            raise BadInputError(
                f"scopes must be some of {', '.join(SCOPES)}, not {', '.join(sorted(wanted))}"
            )
        if expires_at is not None and (expires_at.tzinfo is None or expires_at <= now()):
            raise BadInputError("expires_at needs a time zone and must be in the future")
        limits = quotas or Quotas()
        if any(limit is not None and limit < 0 for limit in asdict(limits).values()):
            raise BadInputError("a quota is negative; leave it out for no limit")
        token_id = secrets.token_hex(8)
        secret = f"{_PREFIX}_{token_id}_{secrets.token_urlsafe(32)}"
        values = {
            "id": token_id,
            "name": plain("name", name, 200),
            "secret_sha256": _hash(secret),
            "scopes": " ".join(sorted(wanted)),
            "created_at": now(),
            "expires_at": expires_at,
            **asdict(limits),
        }
        self._connections.write(lambda connection: connection.execute(sa.insert(tokens).values(values)))
        return Token(token_id, name, wanted, values["created_at"], expires_at, None, limits), secret

    def verify(self, secret: str) -> Token | None:
        """The valid token with this secret, or None."""
        parts = secret.split("_", 2)
        token_id = parts[1] if len(parts) == 3 and parts[0] == _PREFIX and len(parts[1]) == 16 else ""
        if not token_id.isalnum() or not secret.isascii():
            token_id = ""
        statement = sa.select(tokens).where(tokens.c.id == token_id)
        row = self._connections.read(lambda connection: connection.execute(statement).first())
        # Constant time, whether or not there is such a token.
        matches = hmac.compare_digest(_hash(secret), row.secret_sha256 if row is not None else _NO_HASH)
        if row is None or not matches:
            return None
        token = _read(row)
        return token if token.is_valid else None

    def is_valid(self, token_id: str) -> bool:
        """Whether there is such a token, neither revoked nor expired."""
        statement = sa.select(tokens).where(tokens.c.id == plain("token id", token_id))
        row = self._connections.read(lambda connection: connection.execute(statement).first())
        return row is not None and _read(row).is_valid

    def revoke(self, token_id: str) -> bool:
        """Revoke a token; False where there is none, or it is revoked already."""
        statement = (
            sa.update(tokens)
            .where(tokens.c.id == plain("token id", token_id), tokens.c.revoked_at.is_(None))
            .values(revoked_at=now())
        )
        return self._connections.write(lambda connection: connection.execute(statement).rowcount) == 1

    def list(self) -> tuple[Token, ...]:
        """All tokens, valid or not, oldest first."""
        statement = sa.select(tokens).order_by(tokens.c.created_at, tokens.c.id)
        rows = self._connections.read(lambda connection: connection.execute(statement).all())
        return tuple(_read(row) for row in rows)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _read(row: sa.Row[Any]) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        scopes=frozenset(row.scopes.split()),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        quotas=Quotas(**{field.name: getattr(row, field.name) for field in fields(Quotas)}),
    )
