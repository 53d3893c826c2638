"""Reads of workflows on a real database: strangers cost no results, callers take turns, and what
one asks for fails no other's read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import orjson
import psycopg
import pytest
import sqlalchemy.exc

from actors.gateway.gateway import Gateway
from core.settings import Settings
from core.trust.access import Principal
from core.workflow.events import NodeChanged
from core.workflow.transitions import NodeStatus
from ledger.features.agent_live import LivenessStore
from ledger.writer.store import LedgerStore
from serve_app.http.calls import Operation
from serve_app.operations.agents.heartbeat_store import Heartbeats
from serve_app.operations.money import accounts
from serve_app.operations.work import workflows
from tests.conftest import Database
from tests.ledger.making import AGENT, AT, CREDIT, PAYER, Flow, open_with_member
from tests.serve_app.parts import endpoint_of, request

STRANGER = "did:test:stranger"
# A quarter of the smallest bound of a record, so that it is read alone.
LARGE = '{"text":"' + "x" * 20_000 + '"}'
PATHS = (
    "/v1/workflows/{workflow_id}",
    "/v1/workflows/{workflow_id}/cancel",
    "/v1/workflows/{workflow_id}/feedback",
    "/v1/workflows/{workflow_id}/escrow",
    "/v1/workflows/{workflow_id}/budget",
)
OPERATIONS = [one for one in (*workflows.OPERATIONS, *accounts.OPERATIONS) if one.path in PATHS]


class Known:
    """Knows every caller as this one."""

    def __init__(self, did: str) -> None:
        self.did = did

    def recognise(self, *_: object) -> Principal:
        """Return the caller."""
        scopes = frozenset(("workflows:read", "workflows:write", "ledger:read"))
        return Principal(self.did, "k", scopes, "unlimited")


@pytest.fixture
async def gateway(database: Database, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway with a database and no owners."""
    settings = Settings(run_folder=str(tmp_path), database_url=database.service_url)
    gateway = Gateway(settings, record_bytes_max=64 * 1024)
    yield gateway
    await gateway.close()


async def stored_workflow(store: LedgerStore, *, results: int) -> str:
    """Store a workflow with so many large results; return its id."""
    flow = Flow(hold=CREDIT)
    done = [
        NodeChanged(f"n{number}", NodeStatus.SUCCESS, attempt=1, agent_did=AGENT, result_json=LARGE)
        for number in range(results)
    ]
    outcomes = await store.commit([flow.publish(), flow.advance(*done)], AT)
    assert [outcome.error for outcome in outcomes] == [None, None]
    return flow.id


async def asked(gateway: Gateway, did: str, operation: Operation, workflow_id: str) -> Any:
    """Return the status and the body with which a caller's request is answered."""
    endpoint = endpoint_of(OPERATIONS, operation.path, gateway, Known(did))
    body = orjson.dumps({"agentDid": AGENT, "rating": 1}) if operation.method == "POST" else b""
    if operation.path.endswith("cancel"):
        body = b'{"reason": "user_request"}'
    path, path_params = operation.path.format(workflow_id=workflow_id), {"workflow_id": workflow_id}
    status, reply = await request(endpoint, operation.method, path, body, path_params=path_params)
    return status, orjson.loads(reply)


@pytest.mark.parametrize("operation", OPERATIONS, ids=[one.path for one in OPERATIONS])
async def test_a_stranger_is_answered_404_without_a_look_at_results(
    database: Database, gateway: Gateway, operation: Operation
) -> None:
    """Strangers' reads of 16 workflows with 4 MiB of results took 3.8 GB of the replica."""
    store = await open_with_member(database.service_url)
    workflow_id = await stored_workflow(store, results=3)
    status, body = await asked(gateway, STRANGER, operation, workflow_id)
    assert status == 404, body
    # The connection on which alone records are read is opened by the first read.
    assert repr(gateway.reader.records) == "PreparedReads(is_open=False)"
    assert repr(gateway.reader.lookups) == "PreparedReads(is_open=True)"
    await store.close()


async def test_the_payer_and_an_agent_see_a_workflow(database: Database, gateway: Gateway) -> None:
    store = await open_with_member(database.service_url)
    workflow_id = await stored_workflow(store, results=3)
    (read,) = (one for one in OPERATIONS if one.path == PATHS[0] and one.method == "GET")
    status, seen = await asked(gateway, PAYER, read, workflow_id)
    assert (status, seen["payerDid"]) == (200, PAYER)
    status, seen = await asked(gateway, AGENT, read, workflow_id)
    assert (status, "payerDid" in seen, sorted(seen["nodes"])) == (200, False, ["a"])
    await store.close()


async def test_a_callers_many_large_records_do_not_stand_before_anothers_small_one(
    database: Database, gateway: Gateway
) -> None:
    store = await open_with_member(database.service_url)
    large = [await stored_workflow(store, results=3) for _ in range(6)]
    small = await stored_workflow(store, results=0)
    ended: list[str] = []

    async def read(caller_did: str, workflow_id: str) -> None:
        assert await gateway.reads.record(workflow_id, caller_did) is not None
        ended.append(caller_did)

    async with asyncio.TaskGroup() as tasks:
        for workflow_id in large:
            tasks.create_task(read("greedy", workflow_id))
        tasks.create_task(read("modest", small))
    assert ended.index("modest") <= 2, ended
    await store.close()


async def test_a_value_that_the_database_refuses_fails_no_other_read_of_its_batch(
    database: Database, gateway: Gateway
) -> None:
    """Strangers' nodeIds with U+0000 failed 148 of 150 results that another tenant handed in."""
    store = await open_with_member(database.service_url)
    workflow_id, reads = await stored_workflow(store, results=1), gateway.reads
    store_of_heartbeats = LivenessStore(database.service_url)  # opens nothing to read claims
    heartbeats = Heartbeats(store_of_heartbeats, gateway.reader, 100, cast(Any, None))
    nul, no_id = "a\0b", "no UUID"
    good = [
        reads.dispatched_node(workflow_id, "n0"),
        reads.head(workflow_id, PAYER),
        reads.row(workflow_id),
        reads.has_ended(workflow_id),
        heartbeats.claim(AGENT),
    ]
    bad = [
        reads.dispatched_node(workflow_id, nul),
        reads.dispatched_node(no_id, "n0"),
        reads.head(workflow_id, nul),
        reads.row(no_id),
        reads.has_ended(no_id),
        heartbeats.claim(nul),
    ]
    found = await asyncio.gather(*good, *bad, return_exceptions=True)
    for answer in found[: len(good)]:
        assert not isinstance(answer, BaseException), answer
    for answer in found[len(good) :]:
        assert isinstance(answer, psycopg.DataError | sqlalchemy.exc.DataError), answer
    await store.close()
