"""Workflows as their records show them: no more is read than a record has room for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from core.canonical import hash_bytes
from core.errors import ServiceError
from core.workflow.events import AttemptFinished, BlobRef, NodeChanged
from core.workflow.transitions import NodeStatus
from ledger.features.workflow_reads import (
    attempt_agent,
    dispatched_nodes,
    workflow_heads,
    workflow_records,
    workflow_rows,
)
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.making import AGENT, AT, CREDIT, PAYER, Flow, errors, new_id

TEXT = '{"text":"' + "ä" * 5_000 + '"}'


@pytest.fixture
async def reader(database: Database) -> AsyncIterator[LedgerReader]:
    """Reads as the service does."""
    async with LedgerReader(database.service_url, pool_size=1) as reader:
        yield reader


async def test_many_workflows_are_read_in_the_order_of_their_ids_in_the_question(
    store: LedgerStore, reader: LedgerReader
) -> None:
    flows = [Flow(hold=CREDIT) for _ in range(3)]
    await store.commit([flow.publish() for flow in flows], AT)
    asked = [flows[2].id, "no uuid", flows[0].id.upper(), new_id(), flows[2].id]
    found = await workflow_records(reader, asked, bytes_max=1)
    ids = [item.id if item is not None else None for item in found]
    assert ids == [flows[2].id, None, flows[0].id, None, flows[2].id]
    assert await workflow_records(reader, [], bytes_max=1) == []


async def test_who_may_see_a_workflow_is_read_without_its_results(
    store: LedgerStore, reader: LedgerReader
) -> None:
    flows = [Flow(hold=CREDIT) for _ in range(2)]
    first = flows[0].publish()
    done = NodeChanged("a", NodeStatus.SUCCESS, attempt=1, result_json=TEXT, agent_did=AGENT)
    await store.commit([first, flows[0].advance(done), flows[1].publish()], AT)
    stranger = "did:test:stranger"
    asked = [
        (flows[0].id, stranger),
        (flows[0].id.upper(), AGENT),
        (new_id(), AGENT),
        ("no uuid", AGENT),
        (flows[1].id, ""),
        (flows[0].id, stranger),
    ]
    found = await workflow_heads(reader, asked)
    shown = [head and (head.workflow.id, head.is_agent) for head in found]
    own = (flows[0].id, False)
    assert shown == [own, (flows[0].id, True), None, None, (flows[1].id, False), own]
    head = found[0]
    assert head is not None
    assert head.record_bytes == len(first.manifest_json.encode()) + len(TEXT.encode())
    assert not {"manifest", "intent", "result_json"} & set(head.workflow.row)
    (stored,) = await workflow_records(reader, [flows[0].id], bytes_max=1)
    assert stored is not None
    assert head.workflow.row.items() <= stored.row.items()
    assert (head.workflow.payer_did, head.workflow.nodes) == (PAYER, [])
    assert await workflow_heads(reader, [("no uuid", "")]) == [None]


async def test_what_a_handed_in_result_is_judged_by_is_read_without_the_rest(
    store: LedgerStore, reader: LedgerReader
) -> None:
    flows = [Flow() for _ in range(2)]
    await store.commit([flow.publish() for flow in flows], AT)
    asked = [(flows[1].id, "a"), (flows[0].id, "b"), (new_id(), "a"), (flows[0].id, "a")]
    found = await dispatched_nodes(reader, [*asked, asked[0]])
    ids = [row and (row["workflow_id"], row["name"], row["attempt"]) for row in found]
    first, last = ((flow.id, "a", 1) for flow in flows)
    assert ids == [last, None, None, first, last]
    assert found[0] is not None
    assert (found[0]["agent_did"], found[0]["status"]) == (AGENT, NodeStatus.DISPATCHED)
    rows = await workflow_rows(reader, [flows[1].id, new_id(), flows[0].id])
    assert [row and (row["id"], row["status"]) for row in rows] == [
        (flows[1].id, "running"),
        None,
        (flows[0].id, "running"),
    ]
    assert rows[0] is not None
    assert '"cap.test.echo.v1"' in rows[0]["manifest"]


async def test_results_beyond_the_bound_come_as_hash_and_size(
    store: LedgerStore, reader: LedgerReader
) -> None:
    flows, size = [Flow(hold=CREDIT) for _ in range(2)], len(TEXT.encode())
    large = BlobRef("sha256:" + "ab" * 32, 70_000)
    for flow in flows:
        rows = [
            NodeChanged(name, NodeStatus.SUCCESS, attempt=1, result_json=TEXT) for name in "abd"
        ]
        rows.append(NodeChanged("c", NodeStatus.SUCCESS, attempt=1, result_ref=large))
        assert await errors(store, flow.publish(), flow.advance(*rows)) == [None, None]
    ids = [flow.id for flow in flows]
    # The bound is each workflow's own.
    for found in await workflow_records(reader, ids, bytes_max=2 * size):
        assert found is not None
        nodes = {node["name"]: node for node in found.nodes}
        assert [nodes[name]["result_json"] for name in "abcd"] == [TEXT, TEXT, None, None]
        assert nodes["a"]["result_ref"] is None
        assert BlobRef.from_json(nodes["c"]["result_ref"]) == large
        assert BlobRef.from_json(nodes["d"]["result_ref"]) == BlobRef(
            hash_bytes(TEXT.encode()), size
        )


async def test_prepared_reads_survive_the_loss_of_their_connection(
    database: Database, reader: LedgerReader
) -> None:
    one = "SELECT pg_backend_pid() AS pid"
    ((first,), (same,)) = await reader.records.rows(one, {}), await reader.records.rows(one, {})
    assert first == same
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 60000)", (first["pid"],))
    (other,) = await reader.records.rows(one, {})
    assert other != first


async def test_a_value_that_is_refused_costs_prepared_reads_no_connection(
    reader: LedgerReader,
) -> None:
    """A refused value made the next read of all callers connect first."""
    one = "SELECT pg_backend_pid() AS pid"
    before = await reader.lookups.rows(one, {})
    for wrong_id, name in ((new_id(), "a\0b"), ("no UUID", "a")):
        with pytest.raises(psycopg.DataError):
            await dispatched_nodes(reader, [(wrong_id, name)])
    assert await reader.lookups.rows(one, {}) == before


async def test_a_cancelled_read_leaves_no_answer_to_the_next(reader: LedgerReader) -> None:
    slow = "SELECT pg_sleep(60), 1 AS n"
    one = "SELECT 2 AS n"
    reading = asyncio.ensure_future(reader.records.rows(slow, {}))
    waiting = asyncio.ensure_future(reader.records.rows(one, {}))
    await asyncio.sleep(0)
    reading.cancel()
    assert await asyncio.wait_for(waiting, 30) == [{"n": 2}]


async def test_the_server_does_no_more_for_a_read_that_was_cancelled(
    database: Database, reader: LedgerReader
) -> None:
    """Clients that left had as many statements at work at once as they liked."""
    at_work = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND query LIKE '%pg_sleep%' AND pid <> pg_backend_pid()"
    )
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:

        async def until(count: int) -> None:
            while connection.execute(at_work).fetchone() != (count,):
                await asyncio.sleep(0.01)

        # Else it finds out by itself, after a while.
        connection.execute(
            f"ALTER DATABASE {database.name} SET client_connection_check_interval = 0"
        )
        slow = "SELECT pg_sleep(600)"
        reading = asyncio.ensure_future(reader.records.rows(slow, {}))
        await asyncio.wait_for(until(1), 30)
        reading.cancel()
        await asyncio.wait_for(until(0), 30)


async def test_a_server_that_says_nothing_is_asked_once(database: Database) -> None:
    one = "SELECT 2 AS n"
    slow = "SELECT pg_sleep(600)"
    async with LedgerReader(database.service_url, timeout_s=1.0) as reader:
        await reader.records.rows(one, {})
        with pytest.raises(ServiceError, match="cannot be reached"):
            await reader.records.rows(slow, {})
    with psycopg.connect(database.superuser_url, autocommit=True) as connection:
        asked = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query LIKE '%pg_sleep%'"
            " AND pid <> pg_backend_pid()"
        ).fetchall()
    assert len(asked) == 1


async def test_a_look_up_waits_for_no_record(reader: LedgerReader) -> None:
    slow = "SELECT pg_sleep(600)"
    reading = asyncio.ensure_future(reader.records.rows(slow, {}))
    await asyncio.sleep(0)
    assert await dispatched_nodes(reader, [(new_id(), "a")]) == [None]
    assert not reading.done()
    reading.cancel()


async def test_the_agent_of_an_earlier_attempt_is_read_from_the_history(
    store: LedgerStore, reader: LedgerReader
) -> None:
    flow = Flow(hold=CREDIT)
    ended = [
        AttemptFinished("a", number, f"{AGENT}-{number}", "timeout", AT, AT, kind)
        for number, kind in ((1, "primary"), (2, "primary"), (1, "verify"))
    ]
    await store.commit([flow.publish(), flow.advance(*ended)], AT)
    first = await attempt_agent(reader, flow.id, "a", 1, is_verification=False)
    assert first == f"{AGENT}-1"
    assert await attempt_agent(reader, flow.id, "a", 3, is_verification=False) is None
    assert await attempt_agent(reader, flow.id, "a", 2, is_verification=True) is None
