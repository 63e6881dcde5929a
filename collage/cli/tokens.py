"""`collage token`: make, list and revoke the tokens of a server, on its database."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from collage.cli.parameters import AsJson
from collage.cost_db.connections import default_url
from collage.cost_db.database import CostDatabase
from collage.cost_db.tokens import Quotas, Token, TokenStore
from collage.partitioner.errors import BadInputError

tokens_app = typer.Typer(help="Make and revoke the tokens of a server.", no_args_is_help=True)

_UNITS = {
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}

Database = Annotated[
    str | None, typer.Option("--database", help="URL of the server's database [COLLAGE_DATABASE_URL].")
]


@tokens_app.command("create")
def create(
    scope: Annotated[str, typer.Option(help="Some of read,tune,admin, with commas between.")],
    name: Annotated[str, typer.Option(help="For whom or what it is, as people will see it.")] = "",
    expires: Annotated[
        str | None, typer.Option(help="When it ends: a span (12h, 30d, 52w) or a time with zone.")
    ] = None,
    active_jobs: Annotated[int | None, typer.Option(help="Jobs that wait or run at once.")] = None,
    running_jobs: Annotated[int | None, typer.Option(help="Jobs that run at once.")] = None,
    stored_bytes: Annotated[int | None, typer.Option(help="Bytes of uploaded models.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="Requests in a minute.")] = None,
    database: Database = None,
) -> None:
    """Make a token and print its secret, which cannot be had again."""
    quotas = Quotas(active_jobs, running_jobs, stored_bytes, requests_per_minute)
    scopes = [part.strip() for part in scope.split(",") if part.strip()]
    token, secret = _store(database).create(name, scopes, _moment(expires), quotas)
    typer.echo(f"token {token.id} for {', '.join(sorted(token.scopes))}; keep this secret:", err=True)
    typer.echo(secret)


@tokens_app.command("list")
def show(database: Database = None, as_json: AsJson = False) -> None:
    """List tokens, without their secrets."""
    tokens = _store(database).list()
    if as_json:
        typer.echo(json.dumps([_as_json(token) for token in tokens], indent=2))
        return
    for token in tokens:
        state = "valid" if token.is_valid else "revoked" if token.revoked_at else "expired"
        until = f" until {token.expires_at:%Y-%m-%d %H:%M} UTC" if token.expires_at else ""
        typer.echo(f"{token.id}  {state}{until}  {','.join(sorted(token.scopes))}  {token.name}")


@tokens_app.command("revoke")
def revoke(token_id: str, database: Database = None) -> None:
    """Make a token worthless from now on."""
    if not _store(database).revoke(token_id):
        raise BadInputError(f"there is no valid token {token_id!r}; see `collage token list`")


def _store(database: str | None) -> TokenStore:
    return TokenStore(CostDatabase(database or default_url()))


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    if text[:-1].isdigit() and text[-1] in _UNITS:
        return datetime.now(UTC) + int(text[:-1]) * _UNITS[text[-1]]
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise BadInputError(f"--expires {text!r}: write 30d, or 2026-12-31T00:00:00Z") from None


def _as_json(token: Token) -> dict[str, Any]:
    times = {name: at and at.isoformat() for name, at in _times(token).items()}
    quotas = asdict(token.quotas)
    return {
        "id": token.id,
        "name": token.name,
        "scopes": sorted(token.scopes),
        **times,
        "quotas": quotas,
    }


def _times(token: Token) -> dict[str, datetime | None]:
    return {
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
    }
