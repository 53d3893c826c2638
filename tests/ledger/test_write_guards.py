"""What the function that commits a batch refuses by itself, whatever the writer has planned.

Planning refuses all of this before, so the rows are given to the function as a batch encodes them.
"""

from __future__ import annotations

import asyncio
import re

import pytest
from msgspec.structs import replace
from psycopg import DatabaseError

from core.shards.lease_messages import MemberState
from core.trust.identity.succession import recovery_id
from ledger.features.peers import RemovePeer
from ledger.features.shards import ChangeMember
from ledger.schema import WRITER_ROLE
from ledger.tables.cluster_tables import MEMBERS, SHARDS
from ledger.tables.federation_tables import PEERS, REMOVED_PEERS, ROTATED_PEER_KEYS
from ledger.tables.identity_tables import ENDED_INHERITANCES, RECOVERIES, RELEASED_NAMES
from ledger.tables.market_tables import (
    CORRECTIONS,
    DEPRECATED_VERSIONS,
    RESOLVED_DISPUTES,
    ROTATED_KEYS,
)
from ledger.tables.money_tables import RELEASES, SETTLED_INVOICES
from ledger.tables.table import Encoded, EncodedDumper, Row, hex_text
from ledger.tables.trigger_tables import TRIGGER_CHANGES
from ledger.tables.work_tables import CLOSED_AUCTIONS, HALTS, NODES, WORKFLOW_CHANGES
from ledger.tables.write_function import FUNCTION, PARAMETERS, WRITES
from ledger.tables.writes import Write
from ledger.writer.batch import Batch
from ledger.writer.state_cache import StateCache
from tests.conftest import Database
from tests.ledger.checking import connect
from tests.ledger.making import AGENT, AT, CREDIT, MEMBER, Flow, join, open_store, open_with_member
from tests.ledger.test_peers import add
from tests.ledger.test_recoveries import BY_CUSTODIAN, CUSTODIAN, named_agents, request

PAID, ENDED, UNKNOWN = (f"0199c0de-0000-7000-8000-0000000000a{number}" for number in (1, 2, 3))
GONE = "member-0"
_MEMBER: Row = {"machine": "m", "address": "a", "version": "1", "joined_ms": 1}
_PEER: Row = {
    "id": "p1",
    "did": add().did,
    "endpoint": "https://peer.example",
    "region": "eu",
    "public_key": "K",
    "clearing_did": "did:test:clearing",
    "added_by_did": "did:test:operator",
}
# By write: a row that may not change, and others that are not there.
REFUSED: dict[Write, list[Row]] = {
    WORKFLOW_CHANGES: [{"id": ENDED, "status": "running"}, {"id": UNKNOWN, "status": "running"}],
    NODES: [{"workflow_id": PAID, "name": "a", "status": "failed"}],
    RELEASES: [{"workflow_id": ENDED}, {"workflow_id": UNKNOWN}],
    CLOSED_AUCTIONS: [{"workflow_id": PAID, "node": "a", "round": 1, "status": "no_bids"}],
    SETTLED_INVOICES: [{"id": UNKNOWN, "status": "void"}],
    RESOLVED_DISPUTES: [{"id": UNKNOWN, "status": "resolved_rejected"}],
    MEMBERS: [{**_MEMBER, "id": GONE, "state": "ready"}],
    SHARDS: [
        {"id": 0, "member": MEMBER, "epoch": 1},
        {"id": 0, "member": GONE, "epoch": 0},
        {"id": 256, "member": MEMBER, "epoch": 9},
    ],
    RELEASED_NAMES: [{"name": "unknown"}],
    ENDED_INHERITANCES: [{"agent_did": "did:test:unknown", "status": "cancelled"}],
    RECOVERIES: [
        {
            "id": recovery_id(AGENT, "K2"),
            "agent_did": AGENT,
            "recovery_type": BY_CUSTODIAN,
            "new_key": "K2",
            "requested_by_did": CUSTODIAN,
            "signers": [],
            "status": "pending",
            "created_ms": 1,
        }
    ],
    DEPRECATED_VERSIONS: [{"id": "cap.test.unknown.v1@1.0.0"}],
    ROTATED_KEYS: [{"id": UNKNOWN, "hash": hex_text(b"h" * 32)}],
    TRIGGER_CHANGES: [{"id": UNKNOWN, "status": "active"}],
    CORRECTIONS: [{"agent_did": "did:test:unknown", "total": -1, "failed": -1}],
    # One that is a peer, and a removed one with another DID.
    PEERS: [_PEER, {**_PEER, "id": "p2"}],
    ROTATED_PEER_KEYS: [{"id": "p2", "public_key": "K"}, {"id": "unknown", "public_key": "K"}],
    REMOVED_PEERS: [{"id": "p2"}, {"id": "unknown"}],
}


@pytest.fixture(scope="module")
def cache(shared_database: Database) -> StateCache:
    """What the writer knows of a ledger with a workflow that has paid a node, and an ended one."""

    async def fill() -> StateCache:
        store = await open_with_member(shared_database.service_url)
        paid, ended = Flow(id=PAID, hold=CREDIT), Flow(id=ENDED, hold=CREDIT)
        await store.commit([paid.publish(), paid.pay(CREDIT)], AT)
        await store.commit([ended.publish(), ended.end()], AT)
        gone = ChangeMember(key="gone", actor_did="", member=GONE, state=MemberState.GONE)
        await store.commit([join(GONE), gone], AT)
        # The agent has been paid: by an administrator alone it is registered now.
        made = [replace(one, is_admin=True) for one in named_agents()]
        await store.commit([*made, request(BY_CUSTODIAN, CUSTODIAN)], AT)
        left = RemovePeer(key="left", actor_did="", peer_id="p2")
        assert all(not one.error for one in await store.commit([add(), add(2), left], AT))
        await store.close()
        last = await open_store(shared_database.service_url)
        await last.close()
        return last.cache

    return asyncio.run(fill())


def write(database: Database, batch: Batch) -> None:
    """Call the function as the writer does, and undo what it has done."""
    places = ", ".join(f"%s::{kind}" for _, kind in PARAMETERS)
    with connect(database.service_url, WRITER_ROLE) as connection:
        connection.adapters.register_dumper(Encoded, EncodedDumper)
        with connection.transaction(force_rollback=True):
            query = f"SELECT {FUNCTION}({places})"
            connection.execute(query, batch.parameters())  # type: ignore[arg-type]


def guard_of(write: Write) -> tuple[str, str] | None:
    """Return the error that a statement raises, with its code."""
    found = re.search(r"RAISE EXCEPTION '(.*)' USING ERRCODE = '(.*)'", write.statement)
    return None if found is None else (found[1], found[2])


def test_every_guard_has_its_case() -> None:
    assert set(REFUSED) == {one for one in WRITES if guard_of(one) is not None}


@pytest.mark.parametrize(
    ("refusing", "row"),
    [(refusing, row) for refusing, rows in REFUSED.items() for row in rows],
    ids=lambda value: value.name if isinstance(value, Write) else "",
)
def test_what_may_not_change_is_refused(
    shared_database: Database, cache: StateCache, refusing: Write, row: Row
) -> None:
    guard = guard_of(refusing)
    assert guard is not None
    batch = Batch(cache, AT)
    batch.put(refusing, 1, row)
    with pytest.raises(DatabaseError, match=guard[0]) as refused:
        write(shared_database, batch)
    assert refused.value.sqlstate == guard[1]


def test_what_may_change_is_taken(shared_database: Database, cache: StateCache) -> None:
    """The control of the cases above: the same call with rows that are open."""
    batch = Batch(cache, AT)
    batch.put(WORKFLOW_CHANGES, 1, {"id": PAID, "status": "running"})
    batch.put(NODES, 1, {"workflow_id": PAID, "name": "b", "status": "failed"})
    batch.put(HALTS, 1, {"id": PAID, "is_halted": True})
    batch.put(MEMBERS, 1, {**_MEMBER, "id": MEMBER, "state": "draining"})
    batch.put(SHARDS, 1, {"id": 0, "member": "", "epoch": 2})
    write(shared_database, batch)


def test_a_writer_of_an_earlier_epoch_writes_nothing(
    shared_database: Database, cache: StateCache
) -> None:
    batch = Batch(cache, AT)
    batch.put(HALTS, 1, {"id": PAID, "is_halted": True})
    epoch, cache.head.epoch = cache.head.epoch, cache.head.epoch - 1
    try:
        with pytest.raises(DatabaseError, match="ledger writer fenced off") as refused:
            write(shared_database, batch)
    finally:
        cache.head.epoch = epoch
    assert refused.value.sqlstate == "CB001"
