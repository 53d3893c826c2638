"""Stakes at risk, by the cases of money.md: locked with an attempt, freed at its end, slashed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from core.errors import NodeErrorCode
from core.workflow.events import (
    AttemptFinished,
    NodeChanged,
    Record,
    StakeLocked,
    StakeUnlocked,
    WorkflowChanged,
)
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.commands import Command, OutcomeStatus
from ledger.writer.store import LedgerStore
from tests.ledger.checking import Auditor
from tests.ledger.disputing import about, paid_workflow, resolve
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    PAYER,
    Flow,
    deposit,
)
from tests.ledger.test_stakes import parts, stake

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
        StakeUnlocked(node, attempt, AGENT, micro, failure_code=failure_code),
        AttemptFinished(node, attempt, AGENT, "error", AT, AT + 5, error_code=code),
        NodeChanged(node, status, attempt=attempt, agent_did=AGENT, error={"code": code}),
    )


async def staked(store: LedgerStore, micro: int = 4 * CREDIT) -> None:
    """Open a ledger whose agent has staked."""
    await commit(store, deposit(micro, owner_did=AGENT), stake(micro))


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


@pytest.mark.parametrize("is_last", [False, True])
async def test_a_wrong_signature_costs_as_fraud_does_whatever_becomes_of_the_node(
    is_last: bool, store: LedgerStore, auditor: Auditor
) -> None:
    """Another agent may go on with the node: what was locked with the attempt is lost with it."""
    await staked(store)
    flow = Flow()
    await commit(store, flow.publish(records=(STARTED, *opened())))
    before = auditor.balance(PAYER)
    freed = StakeUnlocked("a", 1, AGENT, CREDIT, is_forged=True)
    records = [record for record in ended("INVALID_REPLY") if not isinstance(record, StakeUnlocked)]
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


async def test_cases_27_and_28_a_failed_node_costs_a_share_of_its_lock_without_a_fee(
    store: LedgerStore, auditor: Auditor
) -> None:
    await staked(store)
    flow = Flow()
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


async def test_case_27_nothing_left_of_the_lock_is_an_event_only(
    store: LedgerStore, auditor: Auditor
) -> None:
    """A refund, a debt, has taken what was locked; the free stake answers for no failure."""
    await staked(store)
    disputed = await paid_workflow(store, 2 * CREDIT)
    spent = Flow(payer=AGENT, hold=auditor.balance(AGENT))
    await commit(store, spent.publish())
    flow = Flow()
    await commit(store, flow.publish(records=(STARTED, *opened())))
    refunded = await resolve(store, about(disputed), 2 * CREDIT)
    assert refunded.result["refundedMicro"] == 2 * CREDIT
    assert parts(auditor) == (3 * CREDIT - 900_000, 0)
    await commit(store, flow.advance(*ended("AGENT_ERROR"), bps=BPS))
    assert parts(auditor) == (3 * CREDIT - 900_000, 0)
    name, payload = events(auditor)[-1]
    assert (name, payload["amountCredits"], payload["entryIds"]) == ("stake.slashed", "0", [])
