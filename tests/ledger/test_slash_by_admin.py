"""What an administrator takes of a stake: what is locked for one node of one agent, once.

Reference: money.md (Slashing); decision refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

import pytest

from core.errors import ErrorCode
from core.workflow.events import StakeUnlocked
from ledger.commands import OutcomeStatus
from ledger.writer.store import LedgerStore
from tests.ledger.checking import Auditor
from tests.ledger.disputing import refused, slash
from tests.ledger.making import (
    AGENT,
    AT,
    CREDIT,
    PAYER,
    Flow,
    errors,
    succeeded,
)
from tests.ledger.test_fraud import at_risk, two_nodes_at_risk
from tests.ledger.test_stakes import parts
from tests.ledger.test_stakes_at_risk import commit, events


@pytest.mark.parametrize(("bps", "slashed"), [(10_000, CREDIT), (1_000, CREDIT // 10), (0, 0)])
async def test_case_27_an_administrator_takes_of_the_nodes_lock_alone_and_ends_it(
    store: LedgerStore, auditor: Auditor, bps: int, slashed: int
) -> None:
    """The payer has it without a fee, the rest is free again, what is locked for `b` stays."""
    flow = await two_nodes_at_risk(store)
    before = auditor.balance(PAYER)
    free, locked = 3 * CREDIT - slashed, CREDIT
    command = slash(flow, bps)
    (result,) = await commit(store, command)
    assert result == {
        "payerDid": PAYER,
        "slashedMicro": slashed,
        "freeMicro": free,
        "lockedMicro": locked,
    }
    assert (parts(auditor), at_risk(auditor, flow)) == ((free, locked), {"b": CREDIT})
    assert auditor.balance(PAYER) == before + slashed
    assert auditor.one("SELECT balance FROM account WHERE address = 'fee'") == 0
    name, payload = events(auditor)[2]
    assert (name, payload["reason"], payload["lockedCredits"]) == ("stake.slashed", "admin", "1")
    assert payload["evidence"] == {
        "workflowId": flow.id,
        "nodeId": "a",
        "attempt": 1,
        "explanation": "it sells what it reads",
    }
    (again,) = await store.commit([command], AT)
    assert (again.status, again.result) == (OutcomeStatus.REPEATED, result)
    assert await errors(store, slash(flow, key=command.key, request_hash=b"other")) == [
        ErrorCode.KEY_REUSED
    ]


async def test_case_27_of_a_node_that_has_ended_there_is_an_event_only(
    store: LedgerStore, auditor: Auditor
) -> None:
    flow = await two_nodes_at_risk(store)
    await commit(store, flow.advance(StakeUnlocked("a", 1, AGENT, CREDIT), *succeeded("a", CREDIT)))
    (result,) = await commit(store, slash(flow))
    assert (result["slashedMicro"], parts(auditor)) == (0, (3 * CREDIT, CREDIT))
    name, payload = events(auditor)[-1]
    assert (name, payload["amountCredits"], payload["entryIds"]) == ("stake.slashed", "0", [])
    assert payload["evidence"]["nodeId"] == "a"


async def test_case_27_an_agent_without_a_stake_has_none_afterwards(
    store: LedgerStore, auditor: Auditor
) -> None:
    flow = Flow()
    _, result = await commit(store, flow.publish(), slash(flow))
    assert (result["slashedMicro"], result["freeMicro"], result["lockedMicro"]) == (0, 0, 0)
    assert auditor.one("SELECT count(*) FROM stake") == 0


async def test_unknown_nodes_are_not_found_and_other_agents_are_a_conflict(
    store: LedgerStore, auditor: Auditor
) -> None:
    flow = await two_nodes_at_risk(store)
    unknown = (slash(flow, node="c"), slash(flow, workflow_id=Flow(1).id))
    for outcome in await store.commit(unknown, AT):
        refused(outcome, ErrorCode.NOT_FOUND)
    (outcome,) = await store.commit([slash(flow, agent_did="did:test:former")], AT)
    refused(outcome, ErrorCode.CONFLICT)
    assert parts(auditor) == (2 * CREDIT, 2 * CREDIT)
    assert "stake.slashed" not in [name for name, _ in events(auditor)]
