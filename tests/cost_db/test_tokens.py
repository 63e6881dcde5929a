"""Tokens, on both engines."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from collage.cost_db.costs.row import now
from collage.cost_db.database import CostDatabase
from collage.cost_db.tables import tokens as table
from collage.cost_db.tokens import Quotas, TokenStore
from collage.partitioner.errors import BadInputError


@pytest.fixture
def tokens(database: CostDatabase) -> TokenStore:
    return TokenStore(database)


def test_a_secret_opens_its_own_token_only(tokens: TokenStore) -> None:
    quotas = Quotas(1, 2, 3, 4)
    ann, ann_secret = tokens.create("ann", ["tune", "read"], now() + timedelta(hours=1), quotas)
    bob, bob_secret = tokens.create("bob", {"admin"})
    assert tokens.verify(ann_secret) == ann and tokens.verify(bob_secret) == bob
    assert (ann.name, ann.scopes, ann.quotas) == ("ann", {"read", "tune"}, quotas)
    assert bob.quotas == Quotas() and bob.expires_at is None
    assert tokens.list() == (ann, bob)


def test_the_database_has_no_secret(database: CostDatabase, tokens: TokenStore) -> None:
    _, secret = tokens.create("ann", ["read"])
    rows = database.connections.read(lambda connection: connection.execute(sa.select(table)).all())
    assert secret.split("_", 2)[2] not in str(rows)
    assert len(secret.split("_", 2)[2]) >= 43  # 32 bytes


@pytest.mark.parametrize("change", ["", "x", "swap", "cut", "é", "\0", "collage__", "collage_%_x"])
def test_a_wrong_secret_opens_nothing(tokens: TokenStore, change: str) -> None:
    ann, secret = tokens.create("ann", ["read"])
    _, other = tokens.create("bob", ["read"])
    wrong = {
        "x": secret + "x",
        "swap": f"collage_{ann.id}_{other.split('_', 2)[2]}",
        "cut": secret[:-1],
        "é": secret + "é",
        "\0": secret + "\0",
    }.get(change, change)
    assert tokens.verify(wrong) is None
    assert tokens.verify(secret) == ann


def test_a_revoked_token_is_worthless_at_once_and_stays_listed(tokens: TokenStore) -> None:
    token, secret = tokens.create("ann", ["read"])
    assert tokens.revoke(token.id) is True
    assert tokens.verify(secret) is None
    assert tokens.revoke(token.id) is False
    assert tokens.revoke("nothing") is False
    (listed,) = tokens.list()
    assert listed.id == token.id and listed.revoked_at is not None and not listed.is_valid


def test_a_token_ends_at_its_time(tokens: TokenStore) -> None:
    token, secret = tokens.create("ann", ["read"], now() + timedelta(seconds=0.2))
    assert tokens.verify(secret) == token
    time.sleep(0.25)
    assert tokens.verify(secret) is None


def test_token_with_bad_scopes_or_expiry_is_refused(tokens: TokenStore) -> None:
    for scopes in ([], ["root"], ["read", "write"]):
        with pytest.raises(BadInputError, match="scopes must be some of read, tune, admin"):
            tokens.create("ann", scopes)
    for moment in (datetime(2100, 1, 1), now() - timedelta(seconds=1)):
        with pytest.raises(BadInputError, match="expires_at"):
            tokens.create("ann", ["read"], moment)
    with pytest.raises(BadInputError, match="quota is negative"):
        tokens.create("ann", ["read"], quotas=Quotas(active_jobs=-1))
    with pytest.raises(BadInputError, match="name has a character"):
        tokens.create("a\0", ["read"])
    assert tokens.list() == ()
