"""What upheld fraud costs: what is locked for the disputed node, nothing else, once.

Reference: money.md (Slashing, Disputes and refunds); decision refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

from typing import Any

import pytest

from core.workflow.events import StakeUnlocked
from ledger.writer.store import LedgerStore
from tests.ledger.checking import Auditor
from tests.ledger.disputing import about, paid_workflow, resolve
from tests.ledger.making import AGENT, CREDIT, Flow, succeeded
from tests.ledger.test_stakes import parts
from tests.ledger.test_stakes_at_risk import STARTED, commit, events, opened, staked


async def two_nodes_at_risk(store: LedgerStore) -> Flow:
    """Open a ledger whose agent has staked 4 credits and has 1 at risk with `a`, 1 with `b`."""
    await staked(store)
    flow = Flow()
    await commit(store, flow.publish(records=(STARTED, *opened("a"), *opened("b"))))
    return flow


def fraud(flow: Flow, **changes: Any) -> Any:
    """Complain of fraud at node `a`."""
    return about(flow, **{"dispute_type": "fraud", "node_id": "a", **changes})


def at_risk(auditor: Auditor, flow: Flow) -> dict[str, int]:
    """Return what the rows of a workflow say is locked, by node."""
    query = "SELECT name, stake_micro FROM node WHERE workflow_id = %s AND stake_micro > 0"
    return dict(auditor.connection.execute(query, (flow.id,)).fetchall())


@pytest.mark.parametrize(("bps", "slashed"), [(10_000, CREDIT), (1_000, CREDIT // 10), (0, 0)])
async def test_case_27_fraud_costs_what_is_locked_for_the_disputed_node_alone(
    store: LedgerStore, auditor: Auditor, bps: int, slashed: int
) -> None:
    """The rest of the node's lock is free again; what is locked for `b` stays locked."""
    flow = await two_nodes_at_risk(store)
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


async def test_case_27_a_node_that_has_ended_has_nothing_locked_any_more(
    store: LedgerStore, auditor: Auditor
) -> None:
    """Nor does other work answer for it: an event only."""
    flow = await two_nodes_at_risk(store)
    await commit(store, flow.advance(StakeUnlocked("a", 1, AGENT, CREDIT), *succeeded("a", CREDIT)))
    outcome = await resolve(store, fraud(flow))
    assert outcome.result["slashedMicro"] == 0
    assert parts(auditor) == (3 * CREDIT, CREDIT)
    name, payload = events(auditor)[-1]
    assert (name, payload["amountCredits"], payload["entryIds"]) == ("stake.slashed", "0", [])
    assert (payload["lockedCredits"], payload["evidence"]["nodeId"]) == ("0", "a")


async def test_case_27_an_agent_that_never_staked_loses_nothing(
    store: LedgerStore, auditor: Auditor
) -> None:
    flow = await paid_workflow(store, CREDIT)
    assert (await resolve(store, fraud(flow))).result["slashedMicro"] == 0
    assert [name for name, _ in events(auditor)] == ["stake.slashed"]
    assert auditor.one("SELECT count(*) FROM stake") == 0, "nothing is opened for it"


async def test_case_27_another_agents_node_costs_it_nothing(
    store: LedgerStore, auditor: Auditor
) -> None:
    """The node was another agent's before: the accused agent loses its own stake, or none."""
    flow = await two_nodes_at_risk(store)
    outcome = await resolve(store, fraud(flow, respondent_did="did:test:former"))
    assert outcome.result["slashedMicro"] == 0
    assert parts(auditor) == (2 * CREDIT, 2 * CREDIT)


async def test_fraud_of_a_payer_does_not_slash_the_stake_it_has_as_an_agent(
    store: LedgerStore, auditor: Auditor
) -> None:
    await two_nodes_at_risk(store)
    bought = await paid_workflow(store, 0, agent="did:test:w", payer=AGENT, hold=0)
    complaint = fraud(bought, complainant_did="did:test:w", respondent_did=AGENT)
    assert (await resolve(store, complaint)).result["slashedMicro"] == 0
    assert parts(auditor) == (2 * CREDIT, 2 * CREDIT)
