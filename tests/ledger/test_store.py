"""The one writer: what commands do to the books, once, whatever is repeated."""

from __future__ import annotations

import orjson
import pytest

from core.errors import ErrorCode
from core.money import MICRO_MAX
from core.workflow.events import AttemptFinished, NodeChanged, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import ClaimWorkflows, OutcomeStatus, RegisterOwner, RevokeKey
from ledger.errors import LedgerFenced, LedgerIntegrityError
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    OWNER,
    PAYER,
    Flow,
    api_key,
    card,
    deposit,
    new_id,
    open_store,
    open_with_owner,
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
    store, epoch = await open_with_owner(database.service_url)
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
    events = [row[0] for row in auditor.connection.execute("SELECT event_type FROM audit")]
    assert events == [
        "ledger.created",
        "owner.registered",
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
    store, epoch = await open_with_owner(database.service_url)
    flows = [Flow(epoch, hold=CREDIT) for _ in range(50)]
    await store.commit([flow.publish() for flow in flows], AT)
    before = store.round_trips
    await store.commit([flow.pay(CREDIT) for flow in flows], AT)
    assert store.round_trips == before + 1
    await store.close()


async def test_later_command_of_a_batch_sees_the_earlier_ones(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_owner(database.service_url, micro=10 * CREDIT)
    first, second = Flow(epoch), Flow(epoch)
    one, two = await store.commit([first.publish(), second.publish()], AT)
    assert one.status is OutcomeStatus.APPLIED
    assert (two.status, two.error) == (OutcomeStatus.REJECTED, ErrorCode.INSUFFICIENT_CREDITS)
    outcomes = await store.commit([first.pay(CREDIT), first.end(), second.publish()], AT)
    assert outcomes[1].result == {"releasedMicro": 9 * CREDIT}
    assert outcomes[2].status is OutcomeStatus.REPEATED, "a rejection is the key's answer for good"
    assert outcomes[2].error is ErrorCode.INSUFFICIENT_CREDITS
    await store.close()


async def test_repeat_returns_the_first_outcome_within_and_across_batches(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_owner(database.service_url)
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
    store, epoch = await open_with_owner(database.service_url)
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


async def test_node_is_paid_once_even_under_another_key(
    database: Database, auditor: Auditor
) -> None:
    """money.md case 9: the first settle wins, the index is the backstop."""
    store, epoch = await open_with_owner(database.service_url)
    flow = Flow(epoch)
    await store.commit([flow.publish(), flow.pay(CREDIT)], AT)
    twin = flow.pay(CREDIT, agent="did:test:other", key="another")
    fine = deposit(CREDIT)
    refused, applied = await store.commit([twin, fine], AT)
    assert refused.error is ErrorCode.ALREADY_SETTLED
    assert applied.status is OutcomeStatus.APPLIED, "the rest of the batch is not harmed"
    assert auditor.balance("did:test:other") == 0
    again, *_ = await store.commit([twin], AT)
    assert (again.status, again.error) == (OutcomeStatus.REPEATED, ErrorCode.ALREADY_SETTLED)
    both = Flow(epoch)
    await store.commit([both.publish()], AT)
    outcomes = await store.commit([both.pay(CREDIT), both.pay(CREDIT, key="second")], AT)
    assert [outcome.error for outcome in outcomes] == [None, ErrorCode.ALREADY_SETTLED]
    await store.close()


async def test_payment_after_the_end_is_refused(database: Database, auditor: Auditor) -> None:
    """money.md case 11; the same from a store that has to read the escrow first."""
    store, epoch = await open_with_owner(database.service_url)
    flow = Flow(epoch)
    await store.commit([flow.publish(), flow.end(WorkflowStatus.CANCELLED)], AT)
    (late,) = await store.commit([flow.pay(CREDIT)], AT)
    assert late.error is ErrorCode.ESCROW_RELEASED
    await store.close()
    store = await open_store(database.service_url)
    (later,) = await store.commit([flow.pay(CREDIT, node="b")], AT)
    assert later.error is ErrorCode.ESCROW_RELEASED
    assert auditor.balance(PAYER) == 100 * CREDIT
    await store.close()


async def test_payment_above_the_escrow_is_refused_whole(
    database: Database, auditor: Auditor
) -> None:
    """money.md case 7: never partial; of two in one batch the first one gets it (case 8)."""
    store, epoch = await open_with_owner(database.service_url)
    flow = Flow(epoch, hold=3 * CREDIT)
    await store.commit([flow.publish()], AT)
    outcomes = await store.commit(
        [flow.pay(2 * CREDIT), flow.pay(2 * CREDIT, node="b"), flow.pay(CREDIT, node="c")], AT
    )
    assert [outcome.error for outcome in outcomes] == [None, ErrorCode.INTERNAL_ERROR, None]
    assert auditor.balance(AGENT) == 2_850_000
    assert auditor.one("SELECT count(*) FROM node WHERE name = 'b'") == 0
    await store.close()


@pytest.mark.parametrize("micro", [0, 1, 19, 20])
async def test_tiny_payments_make_no_empty_entries(
    database: Database, auditor: Auditor, micro: int
) -> None:
    """money.md cases 5 and 6."""
    store, epoch = await open_with_owner(database.service_url)
    flow = Flow(epoch, hold=micro, estimate=micro)
    outcomes = await store.commit([flow.publish(), flow.pay(micro), flow.end()], AT)
    assert [outcome.error for outcome in outcomes] == [None, None, None]
    expected = {0: 0, 1: 1, 19: 1, 20: 2}[micro]
    count = auditor.one("SELECT count(*) FROM entry WHERE kind IN ('node_payment', 'protocol_fee')")
    assert count == expected
    await store.close()


async def test_estimate_above_the_budget_stores_a_failed_workflow_and_holds_nothing(
    database: Database, auditor: Auditor
) -> None:
    """money.md case 3."""
    store, epoch = await open_with_owner(database.service_url)
    flow = Flow(epoch, hold=0)
    failed = (WorkflowChanged(WorkflowStatus.FAILED, AT, error={"code": "BUDGET_EXCEEDED"}),)
    (outcome,) = await store.commit([flow.publish(records=failed, has_hold=False)], AT)
    assert outcome.result["status"] == "failed"
    assert auditor.balance(PAYER) == 100 * CREDIT
    assert auditor.one("SELECT count(*) FROM escrow") == 0
    await store.close()


async def test_workflow_that_ends_in_its_publish_gets_its_hold_back(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_owner(database.service_url)
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


async def test_command_of_an_older_epoch_leaves_no_trace(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_owner(database.service_url)
    flow = Flow(epoch)
    await store.commit([flow.publish()], AT)
    (again,) = await store.commit([RegisterOwner(key="owner", owner=OWNER, address="b")], AT)
    assert again.result == {"epoch": epoch + 1}
    before = auditor.one("SELECT audit_seq FROM head")
    outcomes = await store.commit([flow.pay(CREDIT), Flow(epoch).publish()], AT)
    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.STALE}
    assert auditor.one("SELECT audit_seq FROM head") == before
    flow.epoch += 1
    (repeated,) = await store.commit([Flow(epoch, id=flow.id).publish()], AT)
    assert repeated.status is OutcomeStatus.STALE, "its successor's outcome is not its own"
    (paid,) = await store.commit([flow.pay(CREDIT)], AT)
    assert paid.status is OutcomeStatus.APPLIED
    await store.close()


async def test_claim_moves_unfinished_workflows_once_and_fences_their_owner_off(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_owner(database.service_url)
    running, ended, late = Flow(epoch), Flow(epoch), Flow(epoch)
    await store.commit([running.publish(), ended.publish(), ended.end()], AT)
    claim = ClaimWorkflows(
        key="claim", from_owner=OWNER, from_epoch=epoch, to_owner="owner-2", to_epoch=1
    )
    again = ClaimWorkflows(
        key="claim 2", from_owner=OWNER, from_epoch=epoch, to_owner="owner-2", to_epoch=1
    )
    outcomes = await store.commit(
        [
            late.publish(),
            RegisterOwner(key="o2", owner="owner-2", address=""),
            claim,
            running.pay(CREDIT),
            again,
        ],
        AT,
    )
    assert outcomes[2].result == {"claimed": 2}, "counted after the publish before it"
    assert outcomes[3].status is OutcomeStatus.STALE
    assert outcomes[4].error is ErrorCode.CONFLICT
    owners = auditor.connection.execute("SELECT owner, status FROM workflow ORDER BY 1, 2")
    assert owners.fetchall() == [
        (OWNER, "success"),
        ("owner-2", "running"),
        ("owner-2", "running"),
    ]
    unknown = ClaimWorkflows(key="c", from_owner="x", from_epoch=1, to_owner="owner-2", to_epoch=9)
    (stale,) = await store.commit([unknown], AT)
    assert stale.status is OutcomeStatus.STALE
    await store.close()


async def test_newer_writer_fences_the_older_one_off(database: Database, auditor: Auditor) -> None:
    old = await open_store(database.service_url)
    new = await open_store(database.service_url)
    with pytest.raises(LedgerFenced, match="ledger writer fenced off"):
        await old.commit([deposit(CREDIT)], AT)
    (outcome,) = await new.commit([deposit(CREDIT)], AT)
    assert outcome.status is OutcomeStatus.APPLIED
    assert auditor.balance(PAYER) == CREDIT
    await old.close()
    await new.close()


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
    store, epoch = await open_with_owner(database.service_url)
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


async def test_agent_card_belongs_to_who_registered_it_first(
    database: Database, auditor: Auditor
) -> None:
    store = await open_store(database.service_url)
    first = card(public_key="a2V5", secret_encrypted=b"sealed")
    stranger = card(owner_did="did:test:stranger")
    admin = card(owner_did="did:test:admin", is_admin=True, endpoint="http://127.0.0.1:10")
    signed = card(owner_did="did:test:other", is_signed=True, capability_ids=("x.v1", "y.v1"))
    outcomes = await store.commit([first, stranger, admin, signed], AT)
    assert outcomes[0].result == {"did": AGENT, "registered": 1, "isNew": True}
    assert outcomes[1].error is ErrorCode.FORBIDDEN
    assert outcomes[3].result == {"did": AGENT, "registered": 2, "isNew": False}
    row = auditor.connection.execute(
        "SELECT owner_did, revision, public_key, signing_secret, capability_ids FROM agent"
    ).fetchone()
    assert row == (PAYER, 3, "a2V5", b"sealed", ["x.v1", "y.v1"])
    await store.close()
    store = await open_store(database.service_url)
    (refused,) = await store.commit([card(owner_did="did:test:stranger")], AT)
    assert refused.error is ErrorCode.FORBIDDEN
    await store.close()


async def test_api_key_is_revoked_once_by_its_owner_or_an_admin(
    database: Database, auditor: Auditor
) -> None:
    store = await open_store(database.service_url)
    await store.commit([api_key("k1", b"1" * 32), api_key("k2", b"2" * 32)], AT)

    def revoke(key_id: str, owner_did: str | None) -> RevokeKey:
        return RevokeKey(key=new_id(), actor_did=PAYER, key_id=key_id, owner_did=owner_did)

    outcomes = await store.commit(
        [
            revoke("k1", "did:test:stranger"),
            revoke("k1", PAYER),
            revoke("k1", PAYER),
            revoke("k2", None),
            revoke("k3", None),
        ],
        AT + 1,
    )
    assert [outcome.error for outcome in outcomes] == [
        ErrorCode.NOT_FOUND,
        None,
        ErrorCode.NOT_FOUND,
        None,
        ErrorCode.NOT_FOUND,
    ]
    assert auditor.one("SELECT count(*) FROM api_key WHERE revoked_ms = %s", AT + 1) == 2
    await store.close()


async def test_refusal_of_the_database_is_an_integrity_error(
    database: Database, auditor: Auditor
) -> None:
    """Two workflows of one id under two keys: planning cannot know, the primary key does."""
    store, epoch = await open_with_owner(database.service_url)
    flow = Flow(epoch)
    await store.commit([flow.publish()], AT)
    with pytest.raises(LedgerIntegrityError, match="workflow_pkey"):
        await store.commit([flow.publish(key="another")], AT)
    await store.close()


async def test_node_that_succeeded_never_changes(database: Database, auditor: Auditor) -> None:
    store, epoch = await open_with_owner(database.service_url)
    flow = Flow(epoch)
    await store.commit([flow.publish(), flow.advance(*succeeded("a", 0))], AT)
    undone = NodeChanged("a", NodeStatus.FAILED, attempt=2)
    (refused,) = await store.commit([flow.advance(undone)], AT)
    assert refused.error is ErrorCode.ALREADY_SETTLED
    assert auditor.one("SELECT status FROM node") == "success"
    await store.close()
