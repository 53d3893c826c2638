"""Reads: what was committed, in the order and within the page that was asked for."""

from __future__ import annotations

import orjson
import pytest
import sqlalchemy as sql

from core.shards.shard import SHARDS, shard_of
from core.workflow.events import AttemptFinished, NodeChanged, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.agents.directory_reads import AGENTS
from ledger.reads.agent_pages import FEW_MAX, agents_statement
from ledger.reads.prepared import PreparedStatement
from ledger.reads.reader import LedgerReader
from ledger.schema import attempt
from ledger.workflows.unfinished import UnfinishedPages
from tests.conftest import Database
from tests.ledger.checking import connect, rows_read
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    PAYER,
    Flow,
    all_of,
    api_key,
    card,
    deposit,
    open_with_member,
)

pytestmark = pytest.mark.anyio


async def test_workflow_is_read_with_its_nodes(database: Database, reader: LedgerReader) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    publish = flow.publish()
    await store.commit([publish, flow.pay(2 * CREDIT)], AT)
    found = await reader.workflow(flow.id)
    assert found is not None
    assert (found.id, found.workflow_id) == (flow.id, flow.id)
    assert (found.status, found.payer_did) == (WorkflowStatus.RUNNING, PAYER)
    assert found.row["spent_micro"] == 2 * CREDIT, "told by the escrow while it runs"
    (node,) = found.nodes
    assert (node["status"], node["cost_micro"]) == ("success", 2 * CREDIT)
    assert orjson.loads(node["result_json"]) == {"ok": True}
    assert node["metrics"] == {"latency_ms": 5}
    await store.commit([flow.end()], AT)
    ended = await reader.workflow(flow.id)
    assert ended is not None
    assert ended.row["spent_micro"] == 2 * CREDIT, "and by the row when it has ended"
    escrow = await reader.escrow(flow.id)
    assert escrow is not None
    assert (escrow["status"], escrow["remaining_micro"]) == ("released", 0)
    history = await reader.rows(sql.select(attempt).where(attempt.c.workflow_id == flow.id))
    assert [row["outcome"] for row in history] == ["success"]
    await store.close()


async def test_case_43_unfinished_workflows_of_shards_are_all_a_member_needs_to_go_on(
    database: Database, reader: LedgerReader
) -> None:
    store, epoch = await open_with_member(database.service_url)
    running, ended = Flow(epoch), Flow(epoch)
    waiting = NodeChanged(
        "a",
        NodeStatus.READY,
        attempt=2,
        agent_did=AGENT,
        price_micro=7,
        deadline_ms=AT + 9,
        retry_at_ms=AT + 5,
        retries_used=1,
        agents_tried=("did:x", "did:y"),
        verifiers_tried=("did:z",),
        verifier_did="did:v",
        verify_attempt=3,
        verifier_price_micro=8,
        dispatched_ms=AT,
        started_ms=AT + 1,
        result_json='{"kept":1}',
        error={"code": "AGENT_ERROR", "message": "m"},
    )
    tries = [
        AttemptFinished("a", 1, "did:second", "error", AT, AT),
        AttemptFinished("b", 1, "did:elsewhere", "error", AT, AT),
        AttemptFinished("a", 1, "did:judge", "error", AT, AT, "verify"),
        AttemptFinished("a", 2, "did:first", "lost", AT, AT),
        AttemptFinished("a", 3, "did:second", "timeout", AT, AT),
    ]
    await store.commit(
        [running.publish(), running.advance(waiting, *tries), ended.publish(), ended.end()], AT
    )
    (found,), after = await UnfinishedPages(reader, range(SHARDS)).page(None)
    assert after is None
    assert found.id == running.id
    (node,) = found.nodes
    expected = {
        name: getattr(waiting, name)
        for name in NodeChanged.__struct_fields__
        if name not in ("node", "agents_tried", "verifiers_tried")
    }
    assert {name: node[name] for name in expected} == expected, "every field comes back"
    assert (node["agents_tried"], node["verifiers_tried"]) == (["did:x", "did:y"], ["did:z"])
    assert node["agents_used"] == ["did:second", "did:first", "did:second"]
    assert found.row["reserved"] == "{}"
    others = set(range(SHARDS)) - {shard_of(running.id)}
    assert await UnfinishedPages(reader, others).page(None) == ([], None)
    await store.close()


async def test_lists_of_workflows_page_by_key_and_by_offset(
    database: Database, reader: LedgerReader
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flows = [Flow(epoch, hold=CREDIT) for _ in range(5)]
    await store.commit([flow.publish() for flow in flows], AT)
    await store.commit([flows[0].end(), deposit(CREDIT, owner_did="did:other")], AT)
    newest_first = sorted((flow.id for flow in flows), reverse=True)

    async def ids(**filters: object) -> list[str]:
        return [row["id"] for row in await reader.workflows(**filters)]  # type: ignore[arg-type]

    assert await ids(payer_did=PAYER) == newest_first
    assert await ids(limit=2, offset=1) == newest_first[1:3]
    assert await ids(limit=2, before_id=newest_first[1]) == newest_first[2:4]
    assert await ids(status="success") == [flows[0].id]
    assert await ids(payer_did="did:other") == []
    assert await ids(before_id="no uuid") == []
    await store.close()


async def test_case_32_pending_is_what_ones_own_escrows_hold(
    database: Database, reader: LedgerReader
) -> None:
    """money.md (Accounts): pending is what the caller's own held escrows still hold."""
    store, epoch = await open_with_member(database.service_url)
    flow, other = Flow(epoch), Flow(epoch)
    await store.commit([flow.publish(), flow.pay(3 * CREDIT), other.publish(), other.end()], AT)
    found = await reader.balance(PAYER)
    assert (found.balance_micro, found.pending_micro) == (90 * CREDIT, 7 * CREDIT)
    nobody = await reader.balance("did:test:nobody")
    assert (nobody.balance_micro, nobody.pending_micro) == (0, 0)
    await store.close()


async def test_transactions_are_the_wallets_entries_newest_first(
    database: Database, reader: LedgerReader
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow, other = Flow(epoch), Flow(epoch)
    await store.commit([flow.publish(), flow.pay(CREDIT), flow.end(), other.publish()], AT)
    rows = await reader.transactions(PAYER)
    assert [row["kind"] for row in rows] == [
        "escrow_hold",
        "escrow_release",
        "escrow_hold",
        "deposit",
    ]
    assert [row["id"] for row in rows] == sorted((row["id"] for row in rows), reverse=True)
    assert await reader.transactions(PAYER, limit=2, offset=1) == rows[1:3]
    assert await reader.transactions(PAYER, before_id=rows[1]["id"]) == rows[2:]
    of_flow = await reader.transactions(PAYER, workflow_id=flow.id)
    assert [row["kind"] for row in of_flow] == [
        "escrow_release",
        "protocol_fee",
        "node_payment",
        "escrow_hold",
    ], "the payer sees all that went through the escrow"
    of_agent = await reader.transactions(AGENT, workflow_id=flow.id)
    assert [row["kind"] for row in of_agent] == ["node_payment"]
    assert await reader.transactions("did:test:nobody", workflow_id=flow.id) == []
    assert [row["amount"] for row in await reader.transactions(AGENT)] == [950_000]
    assert await reader.transactions("did:test:nobody") == []
    await store.close()


async def test_audit_filters_and_pages(database: Database, reader: LedgerReader) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    await store.commit([flow.publish()], AT + 1)
    await store.commit([flow.pay(CREDIT), flow.end()], AT + 2)
    everything = await reader.audit()
    assert [row["id"] for row in everything] == list(range(len(everything), 0, -1))
    of_flow = await reader.audit(target_type="workflow", target_id=flow.id)
    assert [row["event_types"] for row in reversed(of_flow)] == [
        ["workflow.published", "escrow.held"],
        ["node.succeeded", "payment.settled"],
        ["workflow.finished", "escrow.released"],
    ]
    assert len(await reader.audit(event_type="payment.settled")) == 1
    assert len(await reader.audit(actor_did=AGENT)) == 2
    assert len(await reader.audit(start_ms=AT + 1, end_ms=AT + 2)) == 1
    assert await reader.audit(limit=2, before_id=4) == everything[-3:-1]
    assert await reader.audit(limit=1, offset=2) == everything[2:3]
    await store.close()


async def test_agents_are_found_by_capability_and_keep_their_secret(
    database: Database, reader: LedgerReader
) -> None:
    store, _ = await open_with_member(database.service_url)
    await store.commit(
        [
            card("did:test:b", secret_encrypted=b"sealed", capability_ids=("x.v1", "y.v1")),
            card("did:test:a", owner_did="did:test:other"),
        ],
        AT,
    )
    assert [row["did"] for row in await reader.agents()] == ["did:test:a", "did:test:b"]
    (found,) = await reader.agents(capability_id="y.v1")
    assert found["did"] == "did:test:b"
    assert "signing_secret" not in found
    assert [row["did"] for row in await reader.agents(owner_did="did:test:other")] == ["did:test:a"]
    assert [row["did"] for row in await reader.agents(after_did="did:test:a")] == ["did:test:b"]
    one = await reader.agent("did:test:b")
    assert one is not None
    assert "signing_secret" not in one
    assert await reader.agent("did:test:c") is None
    rows = await all_of(AGENTS.pages(reader.lookups))
    secrets = {row["did"]: row["signing_secret"] for row in rows}
    assert secrets == {"did:test:a": None, "did:test:b": b"sealed"}
    await store.close()


async def test_api_keys_are_found_by_hash_and_listed_without_it(
    database: Database, reader: LedgerReader
) -> None:
    store, _ = await open_with_member(database.service_url)
    await store.commit(
        [api_key("k1", b"1" * 32), api_key("k2", b"2" * 32, owner_did="did:test:other")], AT
    )
    hashes = [b"2" * 32, b"3" * 32]
    (found,) = (await reader.api_keys_by_hashes(hashes)).values()
    assert found["hash"] == hashes[0]
    assert (found["id"], found["scopes"]) == ("k2", ["ledger:read", "ledger:write"])
    assert found["rate_limits"] == {"read": 5}
    assert [row["id"] for row in await reader.api_keys()] == ["k1", "k2"]
    (own,) = await reader.api_keys(owner_did=PAYER)
    assert "hash" not in own
    assert [row["id"] for row in await reader.api_keys(after_id="k1")] == ["k2"]
    await store.close()


async def test_reader_answers_a_ping(reader: LedgerReader) -> None:
    await reader.ping()


async def test_workflow_that_failed_shows_why(database: Database, reader: LedgerReader) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    end = WorkflowChanged(
        WorkflowStatus.CANCELLED,
        AT + 5,
        error={"code": "CANCELLED", "message": "m"},
        reason="user_request",
        by_did=PAYER,
        details="enough",
    )
    await store.commit([flow.publish(), flow.advance(end)], AT)
    found = await reader.workflow(flow.id)
    assert found is not None
    shown = {name: found.row[name] for name in ("error", "end_reason", "end_details")}
    assert shown == {
        "error": {"code": "CANCELLED", "message": "m"},
        "end_reason": "user_request",
        "end_details": "enough",
    }
    assert (found.row["ended_by_did"], found.row["completed_ms"]) == (PAYER, AT + 5)
    await store.close()


async def test_agents_of_a_capability_are_read_in_order_whether_few_or_many(
    database: Database, reader: LedgerReader
) -> None:
    """One agent of a capability among 100,000 took a read of all of them."""
    store, _ = await open_with_member(database.service_url)
    count = FEW_MAX + 2
    agents = [
        card(f"did:test:{n:04}", capability_ids=("x.v1", *(("y.v1",) if n in (7, 900) else ())))
        for n in range(count)
    ]
    for first in range(0, count, 100):
        await store.commit(agents[first : first + 100], AT)
    few = await reader.agents(capability_id="y.v1", status="active", limit=5)
    assert [row["did"] for row in few] == ["did:test:0007", "did:test:0900"]
    assert not few.is_cut
    after = await reader.agents(capability_id="y.v1", after_did="did:test:0007")
    assert [row["did"] for row in after] == ["did:test:0900"]
    many = await reader.agents(capability_id="x.v1", limit=2, offset=3, after_did="did:test:0900")
    assert [row["did"] for row in many] == ["did:test:0904", "did:test:0905"]
    assert (await reader.agents(capability_id="x.v1", limit=9, bytes_max=1)).is_cut
    assert await reader.agents(capability_id="z.v1") == []
    statement = agents_statement(frozenset({"capability_id", "status"}))
    explained = PreparedStatement(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.text}", {})
    values = {"status": "active", "limit": 5, "offset": 0, "bytes_max": 1_000}
    for capability_id, most in (("y.v1", 4), ("x.v1", FEW_MAX + 6)):
        asked = {**values, "capability_id": capability_id}
        (plan,) = await reader.records.rows(explained, asked)
        assert rows_read(plan["QUERY PLAN"][0]["Plan"])["agent"] <= most, capability_id
    # Who has left counts no more: all agents were looked at, for one that is there.
    with connect(database.superuser_url) as connection:
        connection.execute("UPDATE agent SET status = 'inactive' WHERE did <> 'did:test:0007'")
    left = await reader.agents(capability_id="x.v1", status="active", limit=5)
    assert [row["did"] for row in left] == ["did:test:0007"]
    (plan,) = await reader.records.rows(explained, {**values, "capability_id": "x.v1"})
    assert rows_read(plan["QUERY PLAN"][0]["Plan"])["agent"] <= FEW_MAX + 6
    await store.close()
