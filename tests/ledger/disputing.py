"""Disputes as the API makes them, decided by an administrator; an agent's stake; paid workflows."""

from __future__ import annotations

from typing import Any

from core.errors import ErrorCode
from ledger.commands import Outcome, OutcomeStatus
from ledger.features.disputes import OpenDispute, ResolveDispute
from ledger.features.stakes import SlashStake
from ledger.writer.state_cache import stake_address, stake_locked_address, wallet_address
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import AGENT, AT, PAYER, Flow, new_id, new_key


def about(flow: Flow | None, **changes: Any) -> OpenDispute:
    """Open a dispute of the payer with the agent of node `a`."""
    fields: dict[str, Any] = {
        "key": new_key(),
        "actor_did": PAYER,
        "dispute_id": new_id(),
        "workflow_id": flow.id if flow is not None else None,
        "complainant_did": PAYER,
        "respondent_did": AGENT,
        "node_id": None,
        "dispute_type": "quality",
        "description": "not what was asked",
        "evidence_json": '{"got":1.5,"é":[]}',
    }
    return OpenDispute(**{**fields, **changes})


def decide(
    dispute: OpenDispute, micro: int = 0, status: str = "resolved_complainant", slash: int = 10_000
) -> ResolveDispute:
    """Resolve a dispute with a refund."""
    return ResolveDispute(
        key=new_key(),
        actor_did="did:test:admin",
        dispute_id=dispute.dispute_id,
        status=status,
        resolution="so be it",
        refund_micro=micro,
        slash_bps=slash,
    )


def slash(flow: Flow, bps: int = 10_000, **changes: Any) -> SlashStake:
    """Slash the agent for node `a`."""
    fields: dict[str, Any] = {
        "key": new_key(),
        "request_hash": b"s",
        "actor_did": "did:test:admin",
        "agent_did": AGENT,
        "workflow_id": flow.id,
        "node": "a",
        "reason": "it sells what it reads",
        "slash_bps": bps,
    }
    return SlashStake(**{**fields, **changes})


async def resolve(
    store: LedgerStore, dispute: OpenDispute, micro: int = 0, **options: Any
) -> Outcome:
    """Open and resolve a dispute; return the decision's outcome."""
    _, outcome = await store.commit([dispute, decide(dispute, micro, **options)], AT + 50)
    return outcome


def refused(outcome: Outcome, code: ErrorCode) -> None:
    """Check that a command was refused like this."""
    assert (outcome.status, outcome.error) == (OutcomeStatus.REJECTED, code), outcome


async def stake(database: Database, store: LedgerStore, *, free: int, locked: int) -> None:
    """Give the agent stakes: the accounts, filled from its wallet."""
    cache = store.cache
    auditor = Auditor(database.superuser_url)
    connection = auditor.connection
    wallet_id = auditor.one("SELECT id FROM account WHERE address = %s", wallet_address(AGENT))
    epoch, seq = cache.head.epoch, cache.head.entry_seq
    connection.execute("BEGIN")
    connection.execute("SELECT set_config('callboard.epoch', %s, true)", (str(epoch),))
    next_id = auditor.one("SELECT max(id) FROM account") + 1
    for offset, (address, kind, micro) in enumerate(
        (
            (stake_address(AGENT), "stake", free),
            (stake_locked_address(AGENT), "stake_locked", locked),
        )
    ):
        connection.execute(
            "INSERT INTO account (id, address, owner_did, kind, created_ms)"
            " VALUES (%s, %s, %s, %s, 0)",
            (next_id + offset, address, AGENT, kind),
        )
        connection.execute(
            "INSERT INTO entry (id, debit_account_id, credit_account_id, amount, kind, description,"
            " audit_id, created_ms) VALUES (%s, %s, %s, %s, 'stake_deposit', 'x', 1, 0)",
            (seq + 1 + offset, wallet_id, next_id + offset, micro),
        )
    connection.execute(
        "INSERT INTO stake (agent_did, free_account_id, locked_account_id, updated_ms)"
        " VALUES (%s, %s, %s, 0)",
        (AGENT, next_id, next_id + 1),
    )
    connection.execute("COMMIT")
    auditor.close()
    await store.close()


async def paid_workflow(store: LedgerStore, *micro: int, agent: str = AGENT, **terms: Any) -> Flow:
    """Run a workflow whose nodes `a`, `b`, … cost these amounts."""
    flow = Flow(**terms)
    payments = [
        flow.pay(amount, node=node, agent=agent) for node, amount in zip("abc", micro, strict=False)
    ]
    await store.commit([flow.publish(), *payments, flow.end()], AT)
    return flow
