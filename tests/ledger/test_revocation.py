"""Revocation at the one writer: what it stops, what it leaves, and who may do it (money.md,
Settlement)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from core.errors import ErrorCode
from core.workflow.events import AttemptFinished, NodeChanged, NodePaid
from core.workflow.transitions import NodeStatus
from ledger.commands import Command, OutcomeStatus
from ledger.writer.store import LedgerStore
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    Flow,
    NextWriter,
    errors,
    revoke,
    unrevoke,
)

OTHER = "did:test:other"


async def running(store: LedgerStore) -> Flow:
    """Open a ledger with a workflow whose node `a` is at work."""
    flow = Flow()
    (published,) = await store.commit([flow.publish()], AT)
    assert published.status is OutcomeStatus.APPLIED
    return flow


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(AttemptFinished("a", 1, AGENT, "success", AT, AT), id="unpaid"),
        pytest.param(AttemptFinished("b", 1, AGENT, "rejected", AT, AT, "verify"), id="judgement"),
        pytest.param(NodePaid("b#verify", AGENT, 5), id="verifier's pay"),
    ],
)
async def test_case_19_also_what_costs_nothing_and_judgements(
    store: LedgerStore, said: AttemptFinished | NodePaid
) -> None:
    flow = await running(store)
    _, refused = await store.commit([revoke(), flow.advance(said)], AT + 1)
    assert refused.error is ErrorCode.FORBIDDEN


async def test_what_it_failed_at_is_taken(store: LedgerStore) -> None:
    """That an attempt has ended is its owner's word, not the agent's."""
    flow = await running(store)
    over = flow.advance(
        AttemptFinished("a", 1, AGENT, "discarded", AT, AT + 1, error_code="REVOKED"),
        NodeChanged("a", NodeStatus.DISPATCHED, attempt=2, agent_did=OTHER, price_micro=CREDIT),
    )
    _, taken = await store.commit([revoke(), over], AT + 1)
    assert (taken.error, taken.result) == (None, {})


async def test_after_a_refused_step_nothing_is_taken_until_the_rows_were_read_again(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor
) -> None:
    """What an owner had sent meanwhile was decided on a result that does not count; its keys stay
    free, and a new writer knows it too."""
    flow = await running(store)
    child = NodeChanged("b", NodeStatus.DISPATCHED, attempt=1, agent_did=OTHER, price_micro=5)
    after, end = flow.advance(child), flow.end()
    _, refused, *later = await store.commit([revoke(), flow.pay(CREDIT), after, end], AT + 1)
    assert refused.error is ErrorCode.FORBIDDEN
    assert [one.error for one in later] == [ErrorCode.CONFLICT] * 2

    store = await next_writer()
    assert await errors(store, end, at=AT + 2) == [ErrorCode.CONFLICT]
    assert auditor.one("SELECT count(*) FROM node WHERE name = 'b'") == 0
    assert auditor.one("SELECT status FROM workflow") == "running"
    fresh, *taken = await store.commit([replace(flow.advance(), is_fresh=True), after, end], AT + 3)
    assert [one.error for one in (fresh, *taken)] == [None] * 3
    assert auditor.one("SELECT is_halted FROM workflow") is False


async def test_an_attempt_that_a_revoked_agent_is_given_is_named(store: LedgerStore) -> None:
    """Its owner did not know yet: nothing is sent (the HTTP reference: effective on new
    dispatches)."""
    flow = await running(store)
    given = NodeChanged("b", NodeStatus.DISPATCHED, attempt=1, agent_did=AGENT, price_micro=5)
    other = replace(given, node="c", agent_did=OTHER)
    second = Flow()
    _, step, published = await store.commit(
        [revoke(), flow.advance(given, other), second.publish()], AT + 1
    )
    assert step.result == {"revoked": ["b"]}
    assert published.result["revoked"] == ["a"]


async def test_a_revocation_ends_when_it_expires(store: LedgerStore) -> None:
    flow = await running(store)
    await store.commit([revoke(expires_ms=AT + 100)], AT)
    refused_key = "refused while it is revoked"
    assert await errors(store, flow.pay(CREDIT, key=refused_key), at=AT + 99) == [
        ErrorCode.FORBIDDEN
    ]
    # The same step under the same key: what was refused then is not refused for ever.
    paid = replace(flow.pay(CREDIT, key=refused_key), is_fresh=True)
    again, late = revoke(expires_ms=AT + 100), revoke(expires_ms=AT + 200)
    outcomes = await errors(store, paid, again, late, at=AT + 100)
    assert outcomes == [None, ErrorCode.INVALID_REQUEST, None]


async def test_it_is_revoked_once_and_taken_back_once(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor
) -> None:
    """In whatever batches; a new writer knows who is revoked."""
    await running(store)
    commands = [unrevoke(), revoke(), revoke(), unrevoke(), unrevoke(), revoke()]
    expected = [
        ErrorCode.NOT_FOUND, None, ErrorCode.ALREADY_REVOKED, None, ErrorCode.NOT_FOUND, None,
    ]  # fmt: skip
    assert await errors(store, *commands, at=AT + 1) == expected

    store = await next_writer()
    found = [(await store.commit([command], AT + 2))[0].error for command in map(fresh, commands)]
    assert found == [None, None, ErrorCode.ALREADY_REVOKED, None, ErrorCode.NOT_FOUND, None]
    query = "SELECT event_type FROM event WHERE target_id = %s ORDER BY id"
    events = [row[0] for row in auditor.connection.execute(query, (AGENT,)).fetchall()]
    revoked, back = "agent.revoked", "agent.unrevoked"
    assert events == [revoked, back, revoked, back, revoked, back, revoked]
    assert auditor.one("SELECT ended_ms FROM revocation") is None


def fresh(command: Command) -> Command:
    """Return the same command under another key."""
    key = revoke().key
    return replace(command, key=key)


async def test_the_chain_has_the_reason_and_the_hash_of_the_evidence(
    store: LedgerStore, auditor: Auditor
) -> None:
    await running(store)
    command = revoke(expires_ms=AT + 60_000)
    first, repeat, other = await store.commit(
        [command, command, replace(command, request_hash=b"another")], AT + 1
    )
    assert (first.status, repeat.status) == (OutcomeStatus.APPLIED, OutcomeStatus.REPEATED)
    assert repeat.result == first.result
    assert other.error is ErrorCode.KEY_REUSED
    query = "SELECT payload FROM event WHERE event_type = 'agent.revoked'"
    payload = auditor.one(query)
    assert payload.pop("evidenceHash").startswith("sha256:")
    assert payload == {"reason": "it leaks", "expiresAt": "2023-11-14T22:14:20.000Z"}
