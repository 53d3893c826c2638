"""What upheld fraud costs: what is locked for the disputed node, nothing else, once.

Spec: Settlement rules 8; money.md (Slashing, Disputes and refunds);
decision refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

from typing import Any

import pytest

from core.workflow.events import NodeChanged, StakeFreed, WorkflowChanged
from core.workflow.transitions import NodeStatus, WorkflowStatus
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.disputing import about, paid_workflow, resolve
from tests.ledger.making import AGENT, AT, CREDIT, PAYER, Flow, open_with_member, succeeded
from tests.ledger.test_stakes import parts
from tests.ledger.test_stakes_at_risk import STARTED, commit, ended, events, opened, staked

pytestmark = pytest.mark.anyio


async def two_nodes_at_risk(url: str) -> tuple[LedgerStore, Flow]:
    """Open a ledger whose agent has staked 4 credits and has 1 at risk with `a`, 1 with `b`."""
    store, epoch = await staked(url)
    flow = Flow(epoch)
    await commit(store, flow.publish(records=(STARTED, *opened("a"), *opened("b"))))
    return store, flow


def fraud(flow: Flow, **changes: Any) -> Any:
    """Complain of fraud at node `a`."""
    return about(flow, **{"dispute_type": "fraud", "node_id": "a", **changes})


def at_risk(auditor: Auditor, flow: Flow) -> dict[str, int]:
    """Return what the rows of a workflow say is locked, by node."""
    query = "SELECT name, stake_micro FROM node WHERE workflow_id = %s AND stake_micro > 0"
    return dict(auditor.connection.execute(query, (flow.id,)).fetchall())


@pytest.mark.parametrize(("bps", "slashed"), [(10_000, CREDIT), (1_000, CREDIT // 10), (0, 0)])
async def test_case_27_fraud_costs_what_is_locked_for_the_disputed_node_alone(
    database: Database, auditor: Auditor, bps: int, slashed: int
) -> None:
    """The rest of the node's lock is free again; what is locked for `b` stays locked."""
    store, flow = await two_nodes_at_risk(database.service_url)
    outcome = await resolve(store, fraud(flow), slash=bps)
    assert outcome.result["slashedMicro"] == slashed
    assert parts(auditor) == (3 * CREDIT - slashed, CREDIT)
    assert at_risk(auditor, flow) == {"b": CREDIT}
    unlocked = [] if slashed == CREDIT else ["stake.unlocked"]
    assert [name for name, _ in events(auditor)][2:] == ["stake.slashed", *unlocked]
    payload = events(auditor)[2][1]
    assert payload["reason"] == "fraud_dispute"
    assert (payload["evidence"]["nodeId"], payload["evidence"]["attempt"]) == ("a", 1)
    assert payload["evidence"]["disputeId"]
    assert payload["lockedCredits"] == "1"
    await store.close()


async def test_case_27_a_node_that_has_ended_has_nothing_locked_any_more(
    database: Database, auditor: Auditor
) -> None:
    """Nor does other work answer for it: an event only."""
    store, flow = await two_nodes_at_risk(database.service_url)
    await commit(store, flow.advance(StakeFreed("a", 1, AGENT, CREDIT), *succeeded("a", CREDIT)))
    outcome = await resolve(store, fraud(flow))
    assert outcome.result["slashedMicro"] == 0
    assert parts(auditor) == (3 * CREDIT, CREDIT)
    name, payload = events(auditor)[-1]
    assert (name, payload["amountCredits"], payload["entryIds"]) == ("stake.slashed", "0", [])
    assert (payload["lockedCredits"], payload["evidence"]["nodeId"]) == ("0", "a")
    await store.close()


async def test_case_27_an_agent_that_never_staked_loses_nothing(
    database: Database, auditor: Auditor
) -> None:
    store, epoch = await open_with_member(database.service_url)
    flow = await paid_workflow(store, epoch, CREDIT)
    assert (await resolve(store, fraud(flow))).result["slashedMicro"] == 0
    assert [name for name, _ in events(auditor)] == ["stake.slashed"]
    assert auditor.one("SELECT count(*) FROM stake") == 0, "nothing is opened for it"
    await store.close()


async def test_case_27_fraud_in_a_whole_workflow_costs_its_open_nodes_and_no_other_ones(
    database: Database, auditor: Auditor
) -> None:
    store, flow = await two_nodes_at_risk(database.service_url)
    other = Flow(flow.epoch)
    await commit(store, other.publish(records=(STARTED, *opened("a", micro=CREDIT // 2))))
    outcome = await resolve(store, fraud(flow, node_id=None))
    assert outcome.result["slashedMicro"] == 2 * CREDIT
    assert parts(auditor) == (CREDIT * 3 // 2, CREDIT // 2)
    assert at_risk(auditor, flow) == {}
    assert at_risk(auditor, other) == {"a": CREDIT // 2}
    await store.close()


async def test_case_27_another_agents_node_costs_it_nothing(
    database: Database, auditor: Auditor
) -> None:
    """The node was another agent's before: the accused agent loses its own stake, or none."""
    store, flow = await two_nodes_at_risk(database.service_url)
    outcome = await resolve(store, fraud(flow, respondent_did="did:test:former"))
    assert outcome.result["slashedMicro"] == 0
    assert parts(auditor) == (2 * CREDIT, 2 * CREDIT)
    await store.close()


async def test_case_28_fraud_pays_the_payers_wallet_without_a_fee_before_the_release(
    database: Database, auditor: Auditor
) -> None:
    store, flow = await two_nodes_at_risk(database.service_url)
    before = auditor.balance(PAYER)
    await resolve(store, fraud(flow))
    assert auditor.balance(PAYER) == before + CREDIT
    assert auditor.one("SELECT balance FROM account WHERE address = 'fee'") == 0
    freed = [StakeFreed(node, 1, AGENT, CREDIT) for node in "ab"]
    end = WorkflowChanged(WorkflowStatus.CANCELLED, AT + 9)
    await commit(store, flow.advance(*freed, end))
    assert auditor.balance(PAYER) == before + CREDIT + flow.hold
    assert parts(auditor) == (3 * CREDIT, 0), "the lock of `b` is freed, that of `a` was gone"
    await store.close()


async def test_case_29_a_node_is_slashed_once_by_whatever_comes_first(
    database: Database, auditor: Auditor
) -> None:
    """A second upheld dispute finds nothing locked, nor does the failure that comes after it."""
    store, flow = await two_nodes_at_risk(database.service_url)
    assert (await resolve(store, fraud(flow), slash=1_000)).result["slashedMicro"] == CREDIT // 10
    assert (await resolve(store, fraud(flow), slash=1_000)).result["slashedMicro"] == 0
    await commit(store, flow.advance(*ended("AGENT_ERROR"), bps=1_000))
    assert parts(auditor) == (3 * CREDIT - CREDIT // 10, CREDIT)
    assert auditor.one("SELECT count(*) FROM entry WHERE kind = 'stake_slash'") == 1
    # And the other way round: after a failure, fraud finds nothing.
    await commit(store, flow.advance(*ended("AGENT_ERROR", node="b"), bps=1_000))
    assert (await resolve(store, fraud(flow, node_id="b"))).result["slashedMicro"] == 0
    assert auditor.one("SELECT count(*) FROM entry WHERE kind = 'stake_slash'") == 2
    await store.close()


async def test_a_lock_that_fraud_has_ended_does_not_come_back_with_its_owners_next_step(
    database: Database, auditor: Auditor
) -> None:
    """The owner has not heard of it and says that stake is locked; a new writer knows better."""
    store, flow = await two_nodes_at_risk(database.service_url)
    await resolve(store, fraud(flow))
    accepted = NodeChanged("a", NodeStatus.RUNNING, attempt=1, agent_did=AGENT, stake_micro=CREDIT)
    await commit(store, flow.advance(accepted))
    assert at_risk(auditor, flow) == {"b": CREDIT}
    await store.close()
    store, flow.epoch = await open_with_member(database.service_url, micro=1)
    await commit(store, flow.advance(StakeFreed("a", 1, AGENT, CREDIT), *succeeded("a", CREDIT)))
    assert parts(auditor) == (2 * CREDIT, CREDIT), "nothing of what is locked for `b`"
    await store.close()


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"dispute_type": "quality"}, "resolved_complainant"),
        ({}, "dismissed"),
        ({}, "resolved_split"),
        ({"complainant_did": AGENT, "respondent_did": PAYER}, "resolved_complainant"),
    ],
)
async def test_only_fraud_decided_for_the_payer_slashes(
    database: Database, auditor: Auditor, changes: dict[str, Any], status: str
) -> None:
    store, flow = await two_nodes_at_risk(database.service_url)
    outcome = await resolve(store, fraud(flow, **changes), status=status)
    assert outcome.result["slashedMicro"] == 0
    assert parts(auditor) == (2 * CREDIT, 2 * CREDIT)
    assert "stake.slashed" not in [name for name, _ in events(auditor)]
    await store.close()


async def test_fraud_of_a_payer_does_not_slash_the_stake_it_has_as_an_agent(
    database: Database, auditor: Auditor
) -> None:
    store, flow = await two_nodes_at_risk(database.service_url)
    bought = await paid_workflow(store, flow.epoch, 0, agent="did:test:w", payer=AGENT, hold=0)
    complaint = fraud(bought, complainant_did="did:test:w", respondent_did=AGENT)
    assert (await resolve(store, complaint)).result["slashedMicro"] == 0
    assert parts(auditor) == (2 * CREDIT, 2 * CREDIT)
    await store.close()
