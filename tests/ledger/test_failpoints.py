"""A payment is all or nothing: its backend is killed in the middle of the transaction.

Method: as the owner, a trigger that waits for an advisory lock held by the test; the writer's
backend is killed while it waits there. Then either the whole of {node result, two entries, attempt,
audit, key} is there or nothing, the books are sound, and the repeat pays once. That a batch is one
transaction is held by `test_group_commit.py` and by the crashes of `test_money_machine.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from core.workflow.events import NodeChanged, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import OutcomeStatus
from ledger.errors import LedgerUnavailable
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor, connect
from tests.ledger.making import AGENT, AT, CREDIT, Flow, open_store, open_with_member, succeeded

LOCK = 4242
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def watcher(shared_database: Database) -> Iterator[Auditor]:
    """One auditor for all points: their workflows share a ledger."""
    watching = Auditor(shared_database.superuser_url)
    yield watching
    watching.close()


def install(database: Database) -> None:
    """Make every statement that has written entries wait for the lock."""
    with connect(database.owner_url) as connection:
        connection.execute(
            "CREATE FUNCTION callboard.wait_here() RETURNS trigger LANGUAGE plpgsql"
            f" AS $$ BEGIN PERFORM pg_advisory_xact_lock({LOCK}); RETURN NULL; END $$"
        )
        connection.execute(
            # zz: after the triggers of the schema, which fire in the order of their names.
            "CREATE TRIGGER zz_wait_here AFTER INSERT ON entry"
            " FOR EACH STATEMENT EXECUTE FUNCTION callboard.wait_here()"
        )


def remove(database: Database) -> None:
    """Take the failpoint away."""
    with connect(database.owner_url) as connection:
        connection.execute("DROP FUNCTION callboard.wait_here() CASCADE")


def wait_blocked(connection: psycopg.Connection[Any], pid: int) -> None:
    """Return when the backend waits for an advisory lock."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        row = connection.execute(
            "SELECT 1 FROM pg_locks WHERE pid = %s AND locktype = 'advisory' AND NOT granted",
            (pid,),
        ).fetchone()
        if row is not None:
            return
    raise AssertionError(f"backend {pid} never reached the failpoint")


def traces(auditor: Auditor, flow: Flow, key: str) -> dict[str, int]:
    """Count what the settling transaction leaves behind, table by table."""
    queries = {
        "command": ("SELECT count(*) FROM command WHERE id = %s", key),
        "node": (
            "SELECT count(*) FROM node WHERE workflow_id = %s AND status = 'success'",
            flow.id,
        ),
        "next node": ("SELECT count(*) FROM node WHERE workflow_id = %s AND name = 'b'", flow.id),
        "attempt": ("SELECT count(*) FROM attempt WHERE workflow_id = %s", flow.id),
        "payment": (
            "SELECT count(*) FROM entry WHERE workflow_id = %s AND kind = 'node_payment'",
            flow.id,
        ),
        "fee": (
            "SELECT count(*) FROM entry WHERE workflow_id = %s AND kind = 'protocol_fee'",
            flow.id,
        ),
        "audit": (
            "SELECT count(*) FROM event WHERE target_id = %s AND event_type IN"
            " ('node.succeeded', 'payment.settled', 'workflow.finished', 'escrow.released')",
            flow.id,
        ),
        "workflow": (
            "SELECT count(*) FROM workflow WHERE id = %s AND status = 'success'",
            flow.id,
        ),
        "escrow": (
            "SELECT count(*) FROM escrow WHERE workflow_id = %s AND status = 'released'",
            flow.id,
        ),
    }
    return {name: int(auditor.one(query, value)) for name, (query, value) in queries.items()}


async def settle_and_die(
    database: Database, store: LedgerStore, flow: Flow, kill: Any
) -> LedgerUnavailable:
    """Commit the settlement, kill its backend at the failpoint, return what the writer saw."""
    with connect(database.superuser_url) as holder:
        holder.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        pid = store.backend_pid
        commit = asyncio.create_task(store.commit([last_step(flow)], AT))
        await asyncio.to_thread(wait_blocked, holder, pid)
        kill(holder, pid)
        with pytest.raises(LedgerUnavailable) as caught:
            await commit
    await store.close()
    return caught.value


def last_step(flow: Flow) -> Any:
    """Return the settlement of a node that is also the end of its workflow."""
    flow.steps = 0
    return flow.advance(
        *succeeded("a", CREDIT),
        NodeChanged("b", NodeStatus.SKIPPED),
        WorkflowChanged(WorkflowStatus.SUCCESS, AT + 9),
    )


async def assert_repeat_pays_once(
    database: Database, watcher: Auditor, flow: Flow, expected: OutcomeStatus
) -> None:
    """The caller asks again with the same key: all of it is there, once."""
    before = watcher.balance(AGENT)
    store = await open_store(database.service_url)
    (outcome,) = await store.commit([last_step(flow)], AT)
    await store.close()
    assert outcome.status is expected
    assert watcher.balance(AGENT) == before + (950_000 if expected is OutcomeStatus.APPLIED else 0)
    found = traces(watcher, flow, f"advance:{flow.id}:1")
    assert found.pop("audit") == 4
    assert set(found.values()) == {1}, found
    watcher.check()


@pytest.mark.slow
def test_commit_whose_answer_was_lost_is_found_again(
    shared_database: Database, watcher: Auditor
) -> None:
    """The other side of the same coin: the connection dies after COMMIT, before the reply."""

    async def scenario() -> None:
        store, epoch = await open_with_member(shared_database.service_url)
        flow = Flow(epoch)
        await store.commit([flow.publish()], AT)
        await store.commit([last_step(flow)], AT)  # whose reply no process has seen
        await store.close()
        await assert_repeat_pays_once(shared_database, watcher, flow, OutcomeStatus.REPEATED)

    asyncio.run(scenario())


@pytest.mark.slow
def test_settlement_is_all_or_nothing_when_a_server_process_is_killed(
    shared_database: Database,
) -> None:
    """SIGKILL of the backend: the whole server recovers from its log, as after a crash."""

    def kill(_holder: psycopg.Connection[Any], pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    async def scenario() -> None:
        store, epoch = await open_with_member(shared_database.service_url)
        flow = Flow(epoch)
        await store.commit([flow.publish()], AT)
        install(shared_database)
        before = server_start(shared_database)
        await settle_and_die(shared_database, store, flow, kill)
        await asyncio.to_thread(wait_recovered, shared_database, before)
        remove(shared_database)
        recovered = Auditor(shared_database.superuser_url)
        try:
            found = traces(recovered, flow, f"advance:{flow.id}:1")
            assert set(found.values()) == {0}, found
            recovered.check()
            await assert_repeat_pays_once(shared_database, recovered, flow, OutcomeStatus.APPLIED)
        finally:
            recovered.close()

    asyncio.run(scenario())


def server_start(database: Database) -> object:
    """Return when the server has begun to work, which it does anew after each crash."""
    with connect(database.superuser_url) as connection:
        ((start,),) = connection.execute(
            "SELECT backend_start FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
        ).fetchall()
    return start


def wait_recovered(database: Database, before: object) -> None:
    """Return when the server takes connections after a crash, which it may not have noticed yet.

    Args:
        before: its start before the crash.
    """
    deadline = time.monotonic() + DEADLINE_S
    while True:
        with suppress(psycopg.OperationalError, ValueError):  # it restarts
            if server_start(database) != before:
                return
        assert time.monotonic() < deadline, "the server did not come back"
