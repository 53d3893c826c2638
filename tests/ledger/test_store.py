"""The one writer: what commands do to the books, once, whatever is repeated."""

from __future__ import annotations

import orjson
import pytest

from core.errors import ErrorCode
from core.money import MICRO_MAX
from core.workflow.events import AttemptFinished, NodeChanged, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import OutcomeStatus
from ledger.errors import BatchRefused, LedgerFenced, LedgerUnavailable
from ledger.keys.key_commands import RevokeKey
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    PAYER,
    Flow,
    api_key,
    card,
    deposit,
    open_store,
    open_with_member,
    succeeded,
)

pytestmark = pytest.mark.anyio


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
    database: Database, auditor: Auditor
) -> None:
    """Settlement rules 1 to 4, in micro-credits."""
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
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
    await store.close()


async def test_batch_of_any_commands_is_one_round_trip(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flows = [Flow(epoch, hold=CREDIT) for _ in range(50)]
    await store.commit([flow.publish() for flow in flows], AT)
    before = store.round_trips
    await store.commit([flow.pay(CREDIT) for flow in flows], AT)
    assert store.round_trips == before + 1
    assert not store.cache.settled, "what is kept for one batch does not grow"
    await store.close()


async def test_later_command_of_a_batch_sees_the_earlier_ones(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url, micro=10 * CREDIT)
    first, second = Flow(epoch), Flow(epoch)
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
    store, epoch = await open_with_member(database.service_url, micro=CREDIT)
    above, exact = Flow(epoch, hold=CREDIT + 1), Flow(epoch, hold=CREDIT)
    refused, taken = await store.commit([above.publish(), exact.publish()], AT)
    assert refused.error is ErrorCode.INSUFFICIENT_CREDITS
    assert f"{PAYER} has 1 credits available, the workflow needs 1.000001" in refused.detail
    assert taken.status is OutcomeStatus.APPLIED
    await store.close()


async def test_repeat_returns_the_first_outcome_within_and_across_batches(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    publish, pay = flow.publish(), flow.pay(CREDIT)
    first = await store.commit([publish, publish], AT)
    assert [outcome.status for outcome in first] == [OutcomeStatus.APPLIED, OutcomeStatus.REPEATED]
    await store.commit([pay], AT)
    other = deposit(CREDIT)
    again = await store.commit([pay, other, publish, pay], AT)
    assert [outcome.status for outcome in again] == [
        OutcomeStatus.REPEATED,
        OutcomeStatus.APPLIED,
        OutcomeStatus.REPEATED,
        OutcomeStatus.REPEATED,
    ]
    assert again[2].result == first[0].result == first[1].result
    assert auditor.balance(AGENT) == 950_000
    await store.close()


async def test_repeat_is_known_by_its_key_to_a_writer_with_empty_caches(
    database: Database, auditor: Auditor
) -> None:
    """Everything a repeated publish would insert exists: only the key may be noticed."""
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    commands = [flow.publish(), flow.pay(CREDIT), card(), api_key("k", b"k" * 32), flow.end()]
    first = await store.commit(commands, AT)
    await store.close()
    for repeated in ([commands[0]], commands, commands[::-1]):
        store = await open_store(database.service_url)
        again = await store.commit(repeated, AT)
        assert {outcome.status for outcome in again} == {OutcomeStatus.REPEATED}
        await store.close()
    assert [outcome.result for outcome in reversed(again)] == [item.result for item in first]


async def test_key_with_another_request_is_refused(database: Database, auditor: Auditor) -> None:
    store = await open_store(database.service_url)
    await store.commit([deposit(CREDIT, key="k", body=b"one")], AT)
    outcomes = await store.commit(
        [
            deposit(CREDIT, key="k", body=b"two"),
            deposit(CREDIT, key="l", body=b"one"),
            deposit(CREDIT, key="l", body=b"two"),
        ],
        AT,
    )
    assert [outcome.error for outcome in outcomes] == [
        ErrorCode.KEY_REUSED,
        None,
        ErrorCode.KEY_REUSED,
    ]
    assert auditor.balance(PAYER) == 2 * CREDIT
    await store.close()


async def test_case_09_a_node_is_paid_once_even_under_another_key(
    database: Database, auditor: Auditor
) -> None:
    """money.md (Settlement): the first settle wins, the index is the backstop."""
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    await store.commit([flow.publish(), flow.pay(CREDIT)], AT)
    twin = flow.pay(CREDIT, agent="did:test:other", key="another")
    fine = deposit(CREDIT)
    refused, applied = await store.commit([twin, fine], AT)
    assert refused.error is ErrorCode.ALREADY_SETTLED
    assert applied.status is OutcomeStatus.APPLIED, "the rest of the batch is not harmed"
    assert auditor.balance("did:test:other") == 0
    assert refused.result == {"quarantined": "ALREADY_SETTLED"}, "its owner is ahead of the rows"
    again, *_ = await store.commit([twin], AT)
    assert (again.error, again.result) == (ErrorCode.CONFLICT, refused.result)
    both = Flow(epoch)
    await store.commit([both.publish()], AT)
    outcomes = await store.commit([both.pay(CREDIT), both.pay(CREDIT, key="second")], AT)
    assert [outcome.error for outcome in outcomes] == [None, ErrorCode.ALREADY_SETTLED]
    await store.close()


async def test_case_09_a_twin_that_the_escrow_could_not_pay_is_told_that_the_node_is_settled(
    database: Database, auditor: Auditor
) -> None:
    """Why it is refused does not depend on what the first payment has left."""
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch, hold=CREDIT)
    await store.commit([flow.publish(), flow.pay(CREDIT)], AT)
    (refused,) = await store.commit([flow.pay(CREDIT)], AT)
    assert refused.error is ErrorCode.ALREADY_SETTLED
    await store.close()


async def test_case_11_a_payment_after_the_end_is_refused(
    database: Database, auditor: Auditor
) -> None:
    """money.md (Settlement); the same from a store that has to read the escrow first."""
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    await store.commit([flow.publish(), flow.end(WorkflowStatus.CANCELLED)], AT)
    (late,) = await store.commit([flow.pay(CREDIT)], AT)
    assert late.error is ErrorCode.ESCROW_RELEASED
    await store.close()
    store = await open_store(database.service_url)
    (later,) = await store.commit([flow.pay(CREDIT, node="b")], AT)
    assert later.error is ErrorCode.ESCROW_RELEASED
    assert auditor.balance(PAYER) == 100 * CREDIT
    assert auditor.one("SELECT count(*) FROM event WHERE event_type = 'command.refused'") == 2
    assert auditor.one("SELECT count(*) FROM node WHERE result_json IS NOT NULL") == 0
    await store.close()


async def test_case_07_a_payment_above_the_escrow_is_refused_whole(
    database: Database, auditor: Auditor
) -> None:
    """money.md (Settlement): never partial; of two in one batch the first one gets it (case 8)."""
    store, epoch = await open_with_member(database.service_url)
    flow, other = Flow(epoch, hold=3 * CREDIT), Flow(epoch, hold=CREDIT)
    await store.commit([flow.publish(), other.publish()], AT)
    outcomes = await store.commit(
        [flow.pay(2 * CREDIT), flow.pay(2 * CREDIT, node="b"), other.pay(CREDIT, node="c")], AT
    )
    assert [outcome.error for outcome in outcomes] == [None, ErrorCode.INTERNAL_ERROR, None]
    assert auditor.balance(AGENT) == 2_850_000
    assert auditor.one("SELECT count(*) FROM node WHERE name = 'b'") == 0
    await store.close()


@pytest.mark.parametrize("micro", [0, 1, 19, 20])
async def test_case_06_tiny_payments_make_no_empty_entries(
    database: Database, auditor: Auditor, micro: int
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch, hold=micro, estimate=micro)
    outcomes = await store.commit([flow.publish(), flow.pay(micro), flow.end()], AT)
    assert [outcome.error for outcome in outcomes] == [None, None, None]
    expected = {0: 0, 1: 1, 19: 1, 20: 2}[micro]
    count = auditor.one("SELECT count(*) FROM entry WHERE kind IN ('node_payment', 'protocol_fee')")
    assert count == expected
    await store.close()


async def test_case_03_an_estimate_above_the_budget_stores_a_failed_workflow_and_holds_nothing(
    database: Database, auditor: Auditor
) -> None:
    """money.md (Estimate)."""
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch, hold=0)
    failed = (WorkflowChanged(WorkflowStatus.FAILED, AT, error={"code": "BUDGET_EXCEEDED"}),)
    (outcome,) = await store.commit([flow.publish(records=failed, has_hold=False)], AT)
    assert outcome.result["status"] == "failed"
    assert auditor.balance(PAYER) == 100 * CREDIT
    assert auditor.one("SELECT count(*) FROM escrow") == 0
    finished = "SELECT payload FROM event WHERE event_type = 'workflow.finished'"
    payload = auditor.one(finished)
    assert (payload["status"], payload["code"]) == ("failed", "BUDGET_EXCEEDED")
    await store.close()


async def test_workflow_that_ends_in_its_publish_gets_its_hold_back(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    ended = (
        WorkflowChanged(WorkflowStatus.RUNNING, AT),
        NodeChanged("a", NodeStatus.FAILED, error={"code": "NO_CANDIDATE", "message": "none"}),
        WorkflowChanged(WorkflowStatus.FAILED, AT),
    )
    await store.commit([flow.publish(records=ended)], AT)
    assert auditor.balance(PAYER) == 100 * CREDIT
    assert auditor.one("SELECT status FROM escrow") == "released"
    await store.close()


async def test_newer_writer_fences_the_older_one_off(database: Database, auditor: Auditor) -> None:
    """It has the lock when the older one's session has ended."""
    old = await open_store(database.service_url)
    new = await open_store(database.service_url)
    with pytest.raises(LedgerUnavailable):
        await old.commit([deposit(CREDIT)], AT)
    (outcome,) = await new.commit([deposit(CREDIT)], AT)
    assert outcome.status is OutcomeStatus.APPLIED
    assert auditor.balance(PAYER) == CREDIT
    await old.close()
    await new.close()


async def test_fenced_writer_cannot_even_store_a_rejection(
    database: Database, auditor: Auditor
) -> None:
    """A rejection has neither entry nor audit record, whose triggers would refuse it."""
    store, epoch = await open_with_member(database.service_url, micro=CREDIT)
    auditor.connection.execute("UPDATE callboard.head SET epoch = epoch + 1")
    with pytest.raises(LedgerFenced, match="ledger writer fenced off"):
        await store.commit([Flow(epoch, hold=2 * CREDIT).publish()], AT)
    with pytest.raises(LedgerFenced, match="ledger writer fenced off"):
        await store.beat()
    assert auditor.one("SELECT count(*) FROM command WHERE error IS NOT NULL") == 0
    await store.close()


async def test_deposit_stays_within_the_bound_of_a_balance(
    database: Database, auditor: Auditor
) -> None:
    store = await open_store(database.service_url)
    outcomes = await store.commit(
        [deposit(MICRO_MAX), deposit(1), deposit(0, owner_did="did:test:zero")], AT
    )
    assert outcomes[0].result["balanceMicro"] == MICRO_MAX
    assert outcomes[0].result["entry"]["amount"] == MICRO_MAX
    assert [outcome.error for outcome in outcomes[1:]] == [ErrorCode.INVALID_REQUEST] * 2
    await store.close()


async def test_texts_that_cannot_be_stored_do_not_stop_the_batch(
    database: Database, auditor: Auditor
) -> None:
    """NUL and lone surrogates from an agent's mouth, and a literal backslash-u0000 that is fine."""
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    bad = "a\x00b\ud800c\\u0000"
    records = (
        AttemptFinished(
            "a", 1, AGENT, "error", AT, AT, error_code="AGENT_ERROR", error_message=bad
        ),
        NodeChanged("a", NodeStatus.FAILED, attempt=1, error={"code": bad, "message": bad}),
        WorkflowChanged(WorkflowStatus.CANCELLED, AT, reason=bad, by_did=PAYER, details=bad),
    )
    results = NodeChanged("b", NodeStatus.SUCCESS, attempt=1, result_json='{"x":"\\u0000"}')
    outcomes = await store.commit(
        [flow.publish(), flow.advance(results), flow.advance(*records)], AT
    )
    assert [outcome.error for outcome in outcomes] == [None, None, None]
    assert auditor.one("SELECT error_message FROM attempt") == "a\ufffdb\ufffdc\\u0000"
    assert auditor.one("SELECT result_json FROM node WHERE name = 'b'") == '{"x":"\\u0000"}'
    await store.close()


async def test_refusal_of_the_database_is_blamed_on_the_batch_and_the_store_goes_on(
    database: Database, auditor: Auditor
) -> None:
    """Two workflows of one id under two keys: planning cannot know, the primary key does."""
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    await store.commit([flow.publish()], AT)
    with pytest.raises(BatchRefused, match="workflow_pkey"):
        await store.commit([deposit(1), flow.publish(key="another")], AT)
    (fine,) = await store.commit([deposit(1)], AT)
    assert fine.error is None
    await store.close()


async def test_node_that_succeeded_never_changes(database: Database, auditor: Auditor) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = Flow(epoch)
    await store.commit([flow.publish(), flow.advance(*succeeded("a", 0))], AT)
    undone = NodeChanged("a", NodeStatus.FAILED, attempt=2)
    (refused,) = await store.commit([flow.advance(undone)], AT)
    assert refused.error is ErrorCode.ALREADY_SETTLED
    assert auditor.one("SELECT status FROM node") == "success"
    await store.close()


async def test_repeat_of_a_stored_failure_leaves_the_caches_alone(
    database: Database, auditor: Auditor
) -> None:
    """Only a step that is refused now may have been paid before; a repeat proves nothing."""
    store = await open_store(database.service_url)
    failed = RevokeKey(key="failed", actor_did=PAYER, key_id="k", owner_did=PAYER)
    await store.refuse(failed, AT, is_slow=False)
    await store.commit([deposit(1)], AT)
    cache = store.cache
    (again,) = await store.commit([failed], AT)
    await store.close()
    assert (again.status, again.error) == (OutcomeStatus.REPEATED, ErrorCode.INTERNAL_ERROR)
    assert store.cache is cache
