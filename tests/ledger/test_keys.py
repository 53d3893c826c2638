"""API keys: those that stand on others end with them and are bounded in number; rotated ones stay.

Reference: decision permissions-and-keys.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from core.errors import ErrorCode
from ledger.features.keys import _COUNT, _LIVE, CreateKey, RevokeKey, RotateKey
from ledger.writer.store import LedgerStore
from tests.ledger.checking import Auditor, connect, rows_read
from tests.ledger.conftest import Database
from tests.ledger.making import AT, PAYER, NextWriter, api_key, errors, new_id


def key(number: int, parent: int | None = None, **changes: Any) -> CreateKey:
    """Make the key `k<number>` with the key `k<parent>`."""
    parent_id = None if parent is None else f"k{parent}"
    made = api_key(f"k{number}", number.to_bytes(32))
    return replace(made, parent_id=parent_id, **changes)


def revoke(number: int) -> RevokeKey:
    """End a key."""
    return RevokeKey(key=new_id(), actor_did=PAYER, key_id=f"k{number}", owner_did=PAYER)


def live(auditor: Auditor) -> list[str]:
    """Return the keys that have not been revoked."""
    rows = auditor.connection.execute(
        "SELECT id FROM api_key WHERE revoked_ms IS NULL ORDER BY id"
    ).fetchall()
    return [row[0] for row in rows]


async def test_a_key_ends_with_every_key_that_stands_on_it(
    empty_store: LedgerStore, auditor: Auditor
) -> None:
    tree = [key(1), key(2, 1), key(3, 2), key(4, 1), key(5), key(6, 5)]
    await empty_store.commit(tree, AT)
    (outcome,) = await empty_store.commit([revoke(1)], AT + 1)
    assert outcome.result == {"id": "k1", "ended": 4}
    assert live(auditor) == ["k5", "k6"]
    body = auditor.one("SELECT payload FROM event WHERE event_type = 'key.revoked'")
    assert body["descendants"] == ["k2", "k4", "k3"]


async def test_a_parent_that_has_ended_makes_no_key(
    empty_store: LedgerStore, auditor: Auditor
) -> None:
    await empty_store.commit([key(1, expires_ms=AT + 10), key(2), revoke(2)], AT)
    late, orphan, unknown = key(3, 1, expires_ms=AT + 10), key(4, 2), key(5, 9)
    assert set(await errors(empty_store, late, orphan, unknown, at=AT + 10)) == {
        ErrorCode.UNAUTHORIZED
    }
    assert live(auditor) == ["k1"]


async def test_live_keys_of_an_owner_and_their_depth_are_bounded(empty_store: LedgerStore) -> None:
    bounds = {"owner_keys_max": 4, "depth_max": 2}
    outcomes = await errors(
        empty_store, key(1, **bounds), key(2, 1, **bounds), key(3, 2, **bounds), key(4, 3, **bounds)
    )
    assert outcomes == [None, None, None, ErrorCode.CONFLICT]
    outcomes = await errors(empty_store, key(5, **bounds), key(6, **bounds))
    assert outcomes == [None, ErrorCode.CONFLICT]
    await empty_store.commit([revoke(2)], AT)
    outcomes = await errors(empty_store, key(7, **bounds), key(8, **bounds), key(9, **bounds))
    assert outcomes == [None, None, ErrorCode.CONFLICT]


def rotate(number: int, secret: bytes, overlap_ms: int = 0, owner: str | None = PAYER) -> RotateKey:
    """Give the key `k<number>` another hash."""
    return RotateKey(
        key=new_id(),
        actor_did=PAYER,
        key_id=f"k{number}",
        key_hash=secret * 32,
        overlap_ms=overlap_ms,
        owner_did=owner,
    )


def hashes(auditor: Auditor, number: int) -> tuple[bytes, bytes | None, int | None]:
    """Return the hash of a key, the one before, and its end."""
    query = "SELECT hash, previous_hash, previous_ends_ms FROM api_key WHERE id = %s"
    row = auditor.connection.execute(query, (f"k{number}",)).fetchone()
    assert row is not None
    return row


async def test_a_key_of_another_one_that_has_ended_and_an_expired_one_are_not_rotated(
    empty_store: LedgerStore, auditor: Auditor
) -> None:
    await empty_store.commit([key(1), key(2), revoke(2), key(3, expires_ms=AT + 10)], AT)
    outcomes = await errors(
        empty_store,
        rotate(1, b"a", owner="did:test:other"),
        rotate(2, b"b"),
        rotate(3, b"c"),
        rotate(9, b"d"),
        at=AT + 10,
    )
    assert outcomes == [
        ErrorCode.NOT_FOUND,
        ErrorCode.NOT_FOUND,
        ErrorCode.CONFLICT,
        ErrorCode.NOT_FOUND,
    ]
    assert hashes(auditor, 1)[1] is None
    assert await errors(empty_store, rotate(1, b"a", owner=None), at=AT + 11) == [None]


async def test_the_writer_reads_no_keys_that_have_ended_or_expired(
    next_writer: NextWriter, database: Database, auditor: Auditor
) -> None:
    """An owner may have made and ended any number, by itself and by one of its keys."""
    store = await next_writer()
    await store.commit([key(1), key(2, 1), key(3, 1)], AT)
    auditor.connection.execute(
        "INSERT INTO api_key (id, hash, owner_did, name, scopes, rate_class, created_ms, parent_id,"
        " depth, revoked_ms, expires_ms)"
        " SELECT 'e' || n, sha256(n::text::bytea), %s, '', '{}', 'standard', 0, 'k1', 1,"
        " CASE WHEN n %% 2 = 0 THEN 1 END, CASE WHEN n %% 2 = 1 THEN 1 END"
        " FROM generate_series(1, 3000) AS n",
        (PAYER,),
    )
    auditor.connection.execute("ANALYZE api_key")
    with connect(database.superuser_url) as connection:
        connection.execute("SET enable_seqscan = off")
        for query, values, found in (
            (_LIVE, {"id": "k1", "owner": PAYER}, 3),
            (_COUNT, {"owner": PAYER}, 1),
        ):
            assert len(connection.execute(query, values).fetchall()) == found
            explained = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}", values)
            row = explained.fetchone()
            assert row is not None
            assert rows_read(row[0][0]["Plan"])["api_key"] <= 12, row
