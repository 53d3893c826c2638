"""Stakes at risk, by the cases of money.md: locked with an attempt, freed at its end, slashed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from core.errors import ErrorCode, NodeErrorCode
from core.money import MICRO_MAX
from core.workflow.events import (
    AttemptFinished,
    NodeChanged,
    Record,
    StakeFreed,
    StakeLocked,
    WorkflowChanged,
)
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import Command, OutcomeStatus
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.disputing import about, paid_workflow, resolve
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    PAYER,
    Flow,
    card,
    deposit,
    open_with_member,
    succeeded,
)
from tests.ledger.test_stakes import parts, stake, unstake

pytestmark = pytest.mark.anyio

BPS = 1_000
AT_RISK = CREDIT
STARTED = WorkflowChanged(WorkflowStatus.RUNNING, AT)


def opened(node: str = "a", *, attempt: int = 1, micro: int = AT_RISK) -> tuple[Record, ...]:
    """Return the records of an attempt that begins with so much at risk."""
    return (
        StakeLocked(node, attempt, AGENT, micro),
        NodeChanged(
            node,
            NodeStatus.DISPATCHED,
            attempt=attempt,
            agent_did=AGENT,
            price_micro=CREDIT,
            stake_micro=micro,
        ),
    )


def ended(
    code: str,
    *,
    node: str = "a",
    status: NodeStatus = NodeStatus.FAILED,
    attempt: int = 1,
    micro: int = AT_RISK,
    is_blamed: bool = True,
) -> tuple[Record, ...]:
    """Return the records of an attempt whose end is the node's."""
    failure_code = NodeErrorCode(code) if is_blamed else None
    return (
        StakeFreed(node, attempt, AGENT, micro, failure_code=failure_code),
        AttemptFinished(node, attempt, AGENT, "error", AT, AT + 5, error_code=code),
        NodeChanged(node, status, attempt=attempt, agent_did=AGENT, error={"code": code}),
    )


async def staked(url: str, micro: int = 4 * CREDIT) -> tuple[LedgerStore, int]:
    """Open a ledger whose agent has staked."""
    store, epoch = await open_with_member(url)
    await commit(store, deposit(micro, owner_did=AGENT), stake(micro))
    return store, epoch


async def commit(store: LedgerStore, *commands: Command) -> list[dict[str, Any]]:
    """Commit commands, which must be applied; return their results."""
    outcomes = await store.commit(commands, AT)
    assert all(one.status is OutcomeStatus.APPLIED for one in outcomes), outcomes
    return [one.result for one in outcomes]


def events(auditor: Auditor) -> list[tuple[str, dict[str, Any]]]:
    """Return what the chain says of stakes at risk."""
    rows = auditor.connection.execute(
        "SELECT event_type, payload FROM event"
        " WHERE event_type IN ('stake.locked', 'stake.unlocked', 'stake.slashed') ORDER BY id"
    )
    return rows.fetchall()


async def test_case_26_locked_at_dispatch_and_free_again_at_the_nodes_end(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await staked(database.service_url)
    flow = Flow(epoch)
    await commit(store, flow.publish(records=(STARTED, *opened())))
    assert parts(auditor) == (3 * CREDIT, CREDIT)
    assert auditor.one("SELECT stake_micro FROM node") == CREDIT
    await commit(store, flow.advance(StakeFreed("a", 1, AGENT, CREDIT), *succeeded("a", CREDIT)))
    assert parts(auditor) == (4 * CREDIT, 0)
    assert auditor.one("SELECT stake_micro FROM node") == 0
    assert [name for name, _ in events(auditor)] == ["stake.locked", "stake.unlocked"]
    locked = events(auditor)[0][1]
    assert (locked["workflowId"], locked["nodeId"], locked["attempt"]) == (flow.id, "a", 1)
    assert locked["amountCredits"] == "1"
    await store.close()


@pytest.mark.parametrize("is_last", [False, True])
async def test_a_wrong_signature_costs_as_fraud_does_whatever_becomes_of_the_node(
    is_last: bool, database: Database, auditor: Auditor
) -> None:
    """Another agent may go on with the node: what was locked with the attempt is lost with it."""
    store, epoch = await staked(database.service_url)
    flow = Flow(epoch)
    await commit(store, flow.publish(records=(STARTED, *opened())))
    before = auditor.balance(PAYER)
    freed = StakeFreed("a", 1, AGENT, CREDIT, is_forged=True)
    records = [record for record in ended("INVALID_REPLY") if not isinstance(record, StakeFreed)]
    if not is_last:
        records[-1] = NodeChanged("a", NodeStatus.READY, attempt=1)
    forged = replace(flow.advance(freed, *records, bps=BPS), slash_fraud_bps=6_000)
    await commit(store, forged)
    lost = CREDIT * 6 // 10
    assert parts(auditor) == (4 * CREDIT - lost, 0)
    assert auditor.balance(PAYER) == before + lost
    assert [name for name, _ in events(auditor)][1:] == ["stake.slashed", "stake.unlocked"]
    payload = events(auditor)[1][1]
    assert (payload["reason"], payload["evidence"]["code"]) == ("wrong_signature", "INVALID_REPLY")
    assert (payload["evidence"]["nodeId"], payload["evidence"]["attempt"]) == ("a", 1)
    await store.close()


async def test_case_26_too_little_free_stake_moves_nothing_and_names_the_node(
    database: Database, auditor: Auditor
) -> None:
    """Two workflows ask for it in one batch: the second one's attempt must not be sent."""
    store, epoch = await staked(database.service_url, CREDIT)
    one, two = Flow(epoch), Flow(epoch)
    first, second = await commit(
        store,
        one.publish(records=(STARTED, *opened(micro=CREDIT))),
        two.publish(records=(STARTED, *opened(micro=1))),
    )
    assert "unstaked" not in first
    assert second["unstaked"] == ["a"]
    assert parts(auditor) == (0, CREDIT)
    assert auditor.one("SELECT stake_micro FROM node WHERE workflow_id = %s", two.id) == 0
    (repeated,) = await store.commit([two.publish(records=(STARTED, *opened(micro=1)))], AT)
    assert repeated.result["unstaked"] == ["a"]
    # Its end, which was on its way already, frees nothing of the other's.
    await commit(store, two.advance(*ended("AGENT_ERROR", micro=1)))
    assert parts(auditor) == (0, CREDIT)
    await store.close()


async def test_case_26_one_command_frees_before_it_locks(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await staked(database.service_url, CREDIT)
    flow = Flow(epoch)
    await commit(store, flow.publish(records=(STARTED, *opened())))
    (result,) = await commit(
        store,
        flow.advance(StakeFreed("a", 1, AGENT, CREDIT), *succeeded("a", CREDIT), *opened("b")),
    )
    assert "unstaked" not in result
    assert parts(auditor) == (0, CREDIT)
    await store.close()


async def test_case_26_a_new_writer_knows_what_is_locked(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await staked(database.service_url)
    flow = Flow(epoch)
    await commit(store, flow.publish(records=(STARTED, *opened())))
    await store.close()
    store, epoch = await open_with_member(database.service_url, micro=1)
    flow.epoch = epoch
    await commit(store, flow.advance(StakeFreed("a", 1, AGENT, CREDIT), *succeeded("a", CREDIT)))
    assert parts(auditor) == (4 * CREDIT, 0)
    await store.close()


async def test_cases_27_and_28_a_failed_node_costs_a_share_of_its_lock_without_a_fee(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await staked(database.service_url)
    flow = Flow(epoch)
    await commit(store, flow.publish(records=(STARTED, *opened(), *opened("b"))))
    before = auditor.balance(PAYER)
    await commit(store, flow.advance(*ended("AGENT_TIMEOUT", status=NodeStatus.TIMEOUT), bps=BPS))
    assert auditor.balance(PAYER) == before + CREDIT // 10
    # Of the other node's lock nothing, and of the free stake nothing.
    assert parts(auditor) == (2 * CREDIT + CREDIT * 9 // 10, CREDIT)
    assert auditor.one("SELECT balance FROM account WHERE address = 'fee'") == 0
    name, payload = events(auditor)[-2]
    assert name == "stake.slashed"
    assert payload["reason"] == "node_failed"
    assert payload["evidence"] == {
        "workflowId": flow.id, "nodeId": "a", "attempt": 1, "code": "AGENT_TIMEOUT",
    }  # fmt: skip
    assert (payload["lockedCredits"], payload["amountCredits"]) == ("1", "0.1")
    await store.close()


async def test_case_28_a_slash_in_the_command_that_ends_the_workflow(
    database: Database, auditor: Auditor
) -> None:
    """The escrow goes back in the same command: both reach the payer, nothing is left locked."""
    store, epoch = await staked(database.service_url)
    flow = Flow(epoch)
    before = auditor.balance(PAYER)
    await commit(store, flow.publish(records=(STARTED, *opened())))
    end = WorkflowChanged(WorkflowStatus.FAILED, AT + 9, error={"code": "AGENT_ERROR", "node": "a"})
    await commit(store, flow.advance(*ended("AGENT_ERROR"), end, bps=BPS))
    assert auditor.balance(PAYER) == before + CREDIT // 10
    assert parts(auditor) == (4 * CREDIT - CREDIT // 10, 0)
    await store.close()


async def test_case_28_a_full_wallet_takes_what_was_slashed(
    database: Database, auditor: Auditor
) -> None:
    """Deposits are bounded, and with them all that was issued: no income finds a wallet full."""
    store, epoch = await staked(database.service_url)
    flow = Flow(epoch, hold=0)
    await commit(store, flow.publish(records=(STARTED, *opened())))
    await commit(store, deposit(MICRO_MAX - auditor.balance(PAYER) - 3))
    await commit(store, flow.advance(*ended("AGENT_ERROR"), bps=BPS))
    assert auditor.balance(PAYER) == MICRO_MAX - 3 + 100_000
    assert parts(auditor) == (4 * CREDIT - 100_000, 0)
    await store.close()


async def test_case_27_nothing_left_of_the_lock_is_an_event_only(
    database: Database, auditor: Auditor
) -> None:
    """A refund, a debt, has taken what was locked; the free stake answers for no failure."""
    store, epoch = await staked(database.service_url)
    disputed = await paid_workflow(store, epoch, 2 * CREDIT)
    spent = Flow(epoch, payer=AGENT, hold=auditor.balance(AGENT))
    await commit(store, spent.publish())
    flow = Flow(epoch)
    await commit(store, flow.publish(records=(STARTED, *opened())))
    refunded = await resolve(store, about(disputed), 2 * CREDIT)
    assert refunded.result["refundedMicro"] == 2 * CREDIT
    assert parts(auditor) == (3 * CREDIT - 900_000, 0)
    await commit(store, flow.advance(*ended("AGENT_ERROR"), bps=BPS))
    assert parts(auditor) == (3 * CREDIT - 900_000, 0)
    name, payload = events(auditor)[-1]
    assert (name, payload["amountCredits"], payload["entryIds"]) == ("stake.slashed", "0", [])
    await store.close()


async def test_a_failed_attempt_costs_stake_although_another_agent_takes_over(
    database: Database, auditor: Auditor
) -> None:
    """Once per attempt, whatever is sent again."""
    store, epoch = await staked(database.service_url)
    flow = Flow(epoch)
    await commit(store, flow.publish(records=(STARTED, *opened())))
    before = auditor.balance(PAYER)
    freed = StakeFreed("a", 1, AGENT, AT_RISK, failure_code=NodeErrorCode.AGENT_ERROR)
    open_again = NodeChanged("a", NodeStatus.DISPATCHED, attempt=2, agent_did="did:test:next")
    await commit(store, flow.advance(freed, open_again, bps=BPS))
    await commit(store, flow.advance(freed, bps=BPS))
    assert auditor.balance(PAYER) == before + CREDIT // 10
    assert parts(auditor) == (4 * CREDIT - CREDIT // 10, 0)
    name, payload = events(auditor)[1]
    assert (name, payload["reason"]) == ("stake.slashed", "node_failed")
    assert (payload["evidence"]["attempt"], payload["evidence"]["code"]) == (1, "AGENT_ERROR")
    await store.close()


async def test_case_29_what_is_not_the_agents_failure_costs_it_nothing(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await staked(database.service_url)
    flow = Flow(epoch)
    await commit(store, flow.publish(records=(STARTED, *opened())))
    await commit(store, flow.advance(*ended("AGENT_ERROR", is_blamed=False), bps=BPS))
    assert parts(auditor) == (4 * CREDIT, 0)
    assert [name for name, _ in events(auditor)] == ["stake.locked", "stake.unlocked"]
    await store.close()


async def test_case_29_an_attempt_is_slashed_once(database: Database, auditor: Auditor) -> None:
    """Under the same key, under another one, and by an attempt that is not the last."""
    store, epoch = await staked(database.service_url)
    flow = Flow(epoch)
    await commit(store, flow.publish(records=(STARTED, *opened())))
    retried = (
        StakeFreed("a", 1, AGENT, AT_RISK),
        *opened(attempt=2),
    )
    await commit(store, flow.advance(*retried, bps=BPS))
    assert parts(auditor) == (3 * CREDIT, CREDIT)
    failed = flow.advance(*ended("AGENT_ERROR", attempt=2), bps=BPS)
    once, twice = await store.commit([failed, failed], AT)
    assert (once.status, twice.status) == (OutcomeStatus.APPLIED, OutcomeStatus.REPEATED)
    assert parts(auditor) == (4 * CREDIT - CREDIT // 10, 0)
    again = flow.advance(StakeFreed("a", 2, AGENT, AT_RISK), bps=BPS)
    await commit(store, again)
    assert parts(auditor) == (4 * CREDIT - CREDIT // 10, 0)
    await store.close()


async def test_case_30_what_is_locked_cannot_be_withdrawn(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await staked(database.service_url)
    flow = Flow(epoch)
    await commit(store, flow.publish(records=(STARTED, *opened())))
    (refused,) = await store.commit([unstake(3 * CREDIT + 1)], AT)
    assert refused.error is ErrorCode.STAKE_LOCKED
    await commit(store, unstake(3 * CREDIT))
    assert parts(auditor) == (0, CREDIT)
    await store.close()


async def test_a_depositor_does_not_leave_what_is_at_risk_to_another(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    await commit(store, card(owner_did=PAYER), deposit(9 * CREDIT))
    await commit(store, deposit(2 * CREDIT, owner_did=AGENT), stake(2 * CREDIT))
    await commit(store, stake(2 * CREDIT, actor=PAYER))
    flow = Flow(epoch)
    await commit(store, flow.publish(records=(STARTED, *opened())))
    (refused,) = await store.commit([unstake(CREDIT + 1)], AT)
    assert refused.error is ErrorCode.STAKE_LOCKED
    await commit(store, unstake(CREDIT))
    (refused,) = await store.commit([unstake(1)], AT)
    assert refused.error is ErrorCode.STAKE_LOCKED
    assert parts(auditor) == (2 * CREDIT, CREDIT)
    await commit(store, flow.advance(*ended("AGENT_ERROR"), bps=BPS))
    await commit(store, unstake(CREDIT - CREDIT // 30 - 1))  # a third of the loss was its own
    await store.close()
