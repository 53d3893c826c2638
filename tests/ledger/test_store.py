"""The one writer: what commands do to the books, once, whatever is repeated."""

from __future__ import annotations

import orjson
import pytest

from core.errors import ErrorCode
from core.workflow.events import AttemptFinished, NodeChanged, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import OutcomeStatus
from ledger.errors import BatchRefused, LedgerFenced
from ledger.features.keys import RevokeKey
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    PAYER,
    Flow,
    NextWriter,
    api_key,
    card,
    deposit,
    errors,
    open_store,
    open_with_member,
    succeeded,
)


async def test_first_audit_entry_fixes_currency_and_fee(
    database: Database, auditor: Auditor
) -> None:
    await (await open_store(database.service_url)).close()
    await (await open_store(database.service_url)).close()
    bodies = auditor.connection.execute("SELECT body FROM audit").fetchall()
    assert len(bodies) == 1, "genesis is written once"
    record = orjson.loads(bodies[0][0])
    assert record["prevHash"] == "sha256:" + "0" * 64
    assert record["payload"] == {
        "centsPerCredit": 100,
        "currency": "CREDITS",
        "feeBps": 500,
        "microPerCredit": 1_000_000,
        "origin": "test",
        "publicKey": "",
    }


async def test_publish_holds_pay_splits_and_end_returns_the_rest(
    store: LedgerStore, auditor: Auditor
) -> None:
    """Settlement rules 1 to 4, in micro-credits."""
    flow = Flow()
    (published,) = await store.commit([flow.publish()], AT)
    assert published.result["status"] == "pending"
    assert auditor.balance(PAYER) == 90 * CREDIT
    await store.commit([flow.pay(2 * CREDIT)], AT)
    assert auditor.balance(AGENT) == 1_900_000
    assert auditor.one("SELECT balance FROM account WHERE address = 'fee'") == 100_000
    (ended,) = await store.commit([flow.end()], AT)
    assert ended.result == {"releasedMicro": 8 * CREDIT}
    assert auditor.balance(PAYER) == 98 * CREDIT
    row = auditor.connection.execute(
        "SELECT status, spent_micro, started_ms, completed_ms FROM workflow"
    ).fetchone()
    assert row == ("success", 2 * CREDIT, AT, AT + 100)
    events = [row[0] for row in auditor.connection.execute("SELECT event_type FROM event")]
    assert events == [
        "ledger.created",
        "member.joined",
        "shards.taken",
        "ledger.deposited",
        "workflow.published",
        "escrow.held",
        "node.succeeded",
        "payment.settled",
        "workflow.finished",
        "escrow.released",
    ]


async def test_batch_of_any_commands_is_one_round_trip(store: LedgerStore) -> None:
    flows = [Flow(hold=CREDIT) for _ in range(50)]
    await store.commit([flow.publish() for flow in flows], AT)
    before = store.round_trips
    await store.commit([flow.pay(CREDIT) for flow in flows], AT)
    assert store.round_trips == before + 1
    assert not store.cache.settled, "what is kept for one batch does not grow"


async def test_later_command_of_a_batch_sees_the_earlier_ones(
    database: Database, auditor: Auditor
) -> None:
    store = await open_with_member(database.service_url, micro=10 * CREDIT)
    first, second = Flow(), Flow()
    one, two = await store.commit([first.publish(), second.publish()], AT)
    assert one.status is OutcomeStatus.APPLIED
    assert (two.status, two.error) == (OutcomeStatus.REJECTED, ErrorCode.INSUFFICIENT_CREDITS)
    outcomes = await store.commit([first.pay(CREDIT), first.end(), second.publish()], AT)
    assert outcomes[1].result == {"releasedMicro": 9 * CREDIT}
    assert outcomes[2].status is OutcomeStatus.REPEATED, "a rejection is the key's answer for good"
    assert outcomes[2].error is ErrorCode.INSUFFICIENT_CREDITS
    await store.close()


async def test_hold_of_all_one_has_is_taken_and_one_micro_credit_more_is_not(
    database: Database, auditor: Auditor
) -> None:
    store = await open_with_member(database.service_url, micro=CREDIT)
    above, exact = Flow(hold=CREDIT + 1), Flow(hold=CREDIT)
    refused, taken = await store.commit([above.publish(), exact.publish()], AT)
    assert refused.error is ErrorCode.INSUFFICIENT_CREDITS
    assert f"{PAYER} has 1 credits available, the workflow needs 1.000001" in refused.detail
    assert taken.status is OutcomeStatus.APPLIED
    await store.close()


async def test_repeat_is_known_by_its_key_to_a_writer_with_empty_caches(
    store: LedgerStore, next_writer: NextWriter
) -> None:
    """Everything a repeated publish would insert exists: only the key may be noticed."""
    flow = Flow()
    commands = [flow.publish(), flow.pay(CREDIT), card(), api_key("k", b"k" * 32), flow.end()]
    first = await store.commit(commands, AT)
    for repeated in ([commands[0]], commands, commands[::-1]):
        store = await next_writer()
        again = await store.commit(repeated, AT)
        assert {outcome.status for outcome in again} == {OutcomeStatus.REPEATED}
    assert [outcome.result for outcome in reversed(again)] == [item.result for item in first]


async def test_case_03_an_estimate_above_the_budget_stores_a_failed_workflow_and_holds_nothing(
    store: LedgerStore, auditor: Auditor
) -> None:
    """money.md (Estimate)."""
    flow = Flow(hold=0)
    failed = (WorkflowChanged(WorkflowStatus.FAILED, AT, error={"code": "BUDGET_EXCEEDED"}),)
    (outcome,) = await store.commit([flow.publish(records=failed, has_hold=False)], AT)
    assert outcome.result["status"] == "failed"
    assert auditor.balance(PAYER) == 100 * CREDIT
    assert auditor.one("SELECT count(*) FROM escrow") == 0
    finished = "SELECT payload FROM event WHERE event_type = 'workflow.finished'"
    payload = auditor.one(finished)
    assert (payload["status"], payload["code"]) == ("failed", "BUDGET_EXCEEDED")


async def test_case_08_the_last_credits_go_to_whoever_is_first_in_the_queue(
    store: LedgerStore, auditor: Auditor
) -> None:
    flow = Flow(hold=CREDIT)
    racers = [flow.pay(CREDIT, node=node, agent=f"did:test:{node}") for node in "abc"]
    outcomes = await store.commit([flow.publish(), *racers], AT)
    assert [outcome.error is None for outcome in outcomes] == [True, True, False, False]
    assert [auditor.balance(f"did:test:{node}") for node in "abc"] == [950_000, 0, 0]


async def test_workflow_that_ends_in_its_publish_gets_its_hold_back(
    store: LedgerStore, auditor: Auditor
) -> None:
    flow = Flow()
    ended = (
        WorkflowChanged(WorkflowStatus.RUNNING, AT),
        NodeChanged("a", NodeStatus.FAILED, error={"code": "NO_CANDIDATE", "message": "none"}),
        WorkflowChanged(WorkflowStatus.FAILED, AT),
    )
    await store.commit([flow.publish(records=ended)], AT)
    assert auditor.balance(PAYER) == 100 * CREDIT
    assert auditor.one("SELECT status FROM escrow") == "released"


async def test_fenced_writer_cannot_even_store_a_rejection(
    database: Database, auditor: Auditor
) -> None:
    """A rejection has neither entry nor audit record, whose triggers would refuse it."""
    store = await open_with_member(database.service_url, micro=CREDIT)
    auditor.connection.execute("UPDATE callboard.head SET epoch = epoch + 1")
    with pytest.raises(LedgerFenced, match="ledger writer fenced off"):
        await store.commit([Flow(hold=2 * CREDIT).publish()], AT)
    with pytest.raises(LedgerFenced, match="ledger writer fenced off"):
        await store.beat()
    assert auditor.one("SELECT count(*) FROM command WHERE error IS NOT NULL") == 0
    await store.close()


async def test_texts_that_cannot_be_stored_do_not_stop_the_batch(
    store: LedgerStore, auditor: Auditor
) -> None:
    """NUL and lone surrogates from an agent's mouth, and a literal backslash-u0000 that is fine."""
    flow = Flow()
    bad = "a\x00b\ud800c\\u0000"
    records = (
        AttemptFinished(
            "a", 1, AGENT, "error", AT, AT, error_code="AGENT_ERROR", error_message=bad
        ),
        NodeChanged("a", NodeStatus.FAILED, attempt=1, error={"code": bad, "message": bad}),
        WorkflowChanged(WorkflowStatus.CANCELLED, AT, reason=bad, by_did=PAYER, details=bad),
    )
    results = NodeChanged("b", NodeStatus.SUCCESS, attempt=1, result_json='{"x":"\\u0000"}')
    outcomes = await errors(store, flow.publish(), flow.advance(results), flow.advance(*records))
    assert outcomes == [None, None, None]
    assert auditor.one("SELECT error_message FROM attempt") == "a\ufffdb\ufffdc\\u0000"
    assert auditor.one("SELECT result_json FROM node WHERE name = 'b'") == '{"x":"\\u0000"}'


async def test_refusal_of_the_database_is_blamed_on_the_batch_and_the_store_goes_on(
    store: LedgerStore,
) -> None:
    """Two workflows of one id under two keys: planning cannot know, the primary key does."""
    flow = Flow()
    await store.commit([flow.publish()], AT)
    with pytest.raises(BatchRefused, match="workflow_pkey"):
        await store.commit([deposit(1), flow.publish(key="another")], AT)
    assert await errors(store, deposit(1)) == [None]


async def test_node_that_succeeded_never_changes(store: LedgerStore, auditor: Auditor) -> None:
    flow = Flow()
    await store.commit([flow.publish(), flow.advance(*succeeded("a", 0))], AT)
    undone = NodeChanged("a", NodeStatus.FAILED, attempt=2)
    assert await errors(store, flow.advance(undone)) == [ErrorCode.ALREADY_SETTLED]
    assert auditor.one("SELECT status FROM node") == "success"


async def test_repeat_of_a_stored_failure_leaves_the_caches_alone(next_writer: NextWriter) -> None:
    """Only a step that is refused now may have been paid before; a repeat proves nothing."""
    store = await next_writer()
    failed = RevokeKey(key="failed", actor_did=PAYER, key_id="k", owner_did=PAYER)
    await store.refuse(failed, AT, is_slow=False)
    await store.commit([deposit(1)], AT)
    cache = store.cache
    (again,) = await store.commit([failed], AT)
    assert (again.status, again.error) == (OutcomeStatus.REPEATED, ErrorCode.INTERNAL_ERROR)
    assert store.cache is cache
