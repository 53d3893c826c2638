"""Disputes and feedback: complaints, decisions about them, refunds to the payer, ratings.

Reference: money.md (Slashing, Disputes and refunds); decisions refunds-disputes-invoices-quotas and
reputation-and-ranking.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg
import sqlalchemy as sql

from core.canonical import hash_text
from core.json_text import read_json
from core.market.refund import RefundSources, share_refund, split_refund
from core.market.settlement import PaymentSplit
from core.market.slashing import SlashTrigger
from core.money import credits_text
from core.records.audit import AuditEventType
from ledger.authority import AuthorizedCommand
from ledger.connections.connect import fetch
from ledger.features.accounts import REFUND_KINDS, money_agents
from ledger.features.stakes import Guilt, slash_guilty, stake_accounts
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import dispute, feedback
from ledger.tables.market_tables import DISPUTES, FEEDBACK_GIVEN, RESOLVED_DISPUTES
from ledger.writer.batch import Batch, Result, conflict, invalid, not_found
from ledger.writer.command_kind import keys_of, plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import (
    FEE_ADDRESS,
    stake_address,
    stake_locked_address,
    wallet_address,
)


class OpenDispute(AuthorizedCommand, frozen=True, kw_only=True):
    """Store a complaint. It moves no money (money.md, Disputes and refunds).

    `respondent_did` None: the complaint is about a workflow of several agents, or names no
    respondent.
    `evidence_json`: a JSON object. Result: {"disputeId"}.
    """

    dispute_id: str
    workflow_id: str | None
    complainant_did: str
    respondent_did: str | None
    node_id: str | None
    dispute_type: str
    description: str
    evidence_json: str


class ResolveDispute(AuthorizedCommand, frozen=True, kw_only=True):
    """Decide a dispute. A refund reverses entries and goes to the workflow's payer.

    `slash_bps`: the part of the stake locked for the disputed nodes that is slashed if fraud is
    upheld.
    Rejections: NOT_FOUND; CONFLICT (already resolved); INVALID_REQUEST (a refund that does not fit
    the status, or exceeds what is still paid).
    Result: {"disputeId", "refundedMicro", "shortMicro", "slashedMicro"}.
    """

    dispute_id: str
    status: str
    resolution: str
    refund_micro: int
    slash_bps: int


class GiveFeedback(AuthorizedCommand, frozen=True, kw_only=True):
    """Store a payer's rating of an agent in one workflow, 0 to 1,000 thousandths.

    The key names the workflow and the agent, so each pair is rated once. Result: {"agentDid"}.
    """

    request_hash: bytes
    workflow_id: str
    agent_did: str
    payer_did: str
    rating_milli: int
    comment: str


def feedback_key(workflow_id: str, agent_did: str) -> str:
    """Return the key of the only feedback for an agent in a workflow."""
    return f"feedback:{workflow_id}:{agent_did}"


# Loads the rows that the plan of a decision needs: the dispute, its payments and locked stakes. The
# writer reads them directly before it plans the decision, so no other command can change them in
# between.

_DISPUTE: Final = """
SELECT d.status, d.workflow_id::text, d.complainant_did, d.respondent_did, d.node_id,
    d.dispute_type, w.payer_did
FROM callboard.dispute d LEFT JOIN callboard.workflow w ON w.id = d.workflow_id
WHERE d.id = %(dispute)s::uuid
"""
# If the fee took the whole payment, only the node's row names the agent.
_LINES: Final = f"""
SELECT p.node_id, coalesce(a.owner_did, n.agent_did, ''), coalesce(p.agent, 0), coalesce(p.fee, 0),
    coalesce(r.agent, 0), coalesce(r.fee, 0)
FROM (
    SELECT e.node_id, min(e.id) AS first_id,
        max(e.credit_account_id) FILTER (WHERE e.kind = 'node_payment') AS wallet_id,
        sum(e.amount) FILTER (WHERE e.kind = 'node_payment')::bigint AS agent,
        sum(e.amount) FILTER (WHERE e.kind = 'protocol_fee')::bigint AS fee
    FROM callboard.escrow s JOIN callboard.entry e ON e.debit_account_id = s.account_id
    WHERE s.workflow_id = %(workflow)s::uuid AND e.kind IN ('node_payment', 'protocol_fee')
    GROUP BY e.node_id
) p
LEFT JOIN callboard.account a ON a.id = p.wallet_id
LEFT JOIN callboard.node n ON n.workflow_id = %(workflow)s::uuid AND n.name = p.node_id
LEFT JOIN (
    SELECT e.node_id,
        sum(e.amount) FILTER (WHERE e.kind <> 'fee_refund')::bigint AS agent,
        sum(e.amount) FILTER (WHERE e.kind = 'fee_refund')::bigint AS fee
    FROM callboard.entry e WHERE e.workflow_id = %(workflow)s::uuid AND e.kind IN {REFUND_KINDS}
    GROUP BY e.node_id
) r ON r.node_id = p.node_id
ORDER BY p.first_id
"""
_LOCKS: Final = """
SELECT name, attempt, stake_micro FROM callboard.node
WHERE workflow_id = %(workflow)s::uuid AND agent_did = %(agent)s AND stake_micro > 0
    AND name = coalesce(%(node)s::text, name)
ORDER BY name
"""


@dataclass(frozen=True, slots=True)
class PaidLine:
    """One payment line. `paid`: the payment. `refunded`: the part of it that was refunded."""

    line: str
    agent_did: str
    paid: PaymentSplit
    refunded: PaymentSplit

    @property
    def left_micro(self) -> int:
        """The payment with its fee, minus the refunds, micro-credits."""
        paid = self.paid.agent_micro + self.paid.fee_micro
        return paid - self.refunded.agent_micro - self.refunded.fee_micro


@dataclass(frozen=True, slots=True)
class DisputeReads:
    """A dispute as stored, with the payments of its workflow in the order of settlement.

    `locks`: (node, attempt number, locked stake in micro-credits) of the respondent's open attempts
    at the disputed nodes.
    """

    status: str
    workflow_id: str | None
    complainant_did: str
    respondent_did: str | None
    node_id: str | None
    dispute_type: str
    payer_did: str | None
    lines: tuple[PaidLine, ...]
    locks: tuple[tuple[str, int, int], ...] = ()

    @property
    def agent_did(self) -> str | None:
        """The agent that is a party to the dispute; None if it is about several agents."""
        if self.workflow_id is not None and self.complainant_did != self.payer_did:
            return self.complainant_did
        return self.respondent_did

    def disputed_lines(self) -> list[PaidLine]:
        """Return the disputed payments, except payments of the payer to itself."""
        return [
            line
            for line in self.lines
            if self.node_id in (None, line.line)
            and self.agent_did in (None, line.agent_did)
            and line.agent_did != self.payer_did
        ]


async def load_dispute(
    connection: psycopg.AsyncConnection[Any], command: ResolveDispute, read_set: ReadSet
) -> DisputeReads | None:
    """Return a dispute with its payments, None if there is none. Add its accounts to the read
    set."""
    found = await fetch(connection, _DISPUTE, {"dispute": command.dispute_id})
    if not found:
        return None
    _, workflow_id, _, respondent_did, node_id, *_ = found[0]
    disputed = {"workflow": workflow_id, "agent": respondent_did, "node": node_id}
    lines = tuple(
        PaidLine(line, agent_did, PaymentSplit(agent, fee), PaymentSplit(back, fee_back))
        for line, agent_did, agent, fee, back, fee_back in await fetch(connection, _LINES, disputed)
    )
    locks = await fetch(connection, _LOCKS, disputed)
    stored = DisputeReads(*[*found[0], lines, tuple(locks)])
    if stored.payer_did is None:
        return stored
    agents = {line.agent_did for line in stored.disputed_lines()}
    if stored.agent_did is not None:
        agents.add(stored.agent_did)
    read_set.agent_dids |= agents
    read_set.stakes |= agents
    read_set.wallets |= {stored.payer_did, *agents}
    return stored


# Plans of disputes and feedback. Existing entries never change: a refund adds entries in the
# opposite direction, which take from each receiver at most what it has (money.md, Disputes and
# refunds). All checks come before the first row.

COMPLAINANT: Final = "resolved_complainant"
RESPONDENT: Final = "resolved_respondent"
SPLIT: Final = "resolved_split"


def add_open_reads(command: OpenDispute, read_set: ReadSet) -> None:
    """Add the keys of the workflow's payer and of both sides' owners, who see the audit entry."""
    if command.workflow_id is not None:
        read_set.workflow_ids.add(command.workflow_id)
        read_set.agent_dids.add(command.complainant_did)
        read_set.agent_dids.add(command.respondent_did or command.complainant_did)


@plans(OpenDispute, reads=add_open_reads)
def plan_open_dispute(command: OpenDispute, batch: Batch) -> Result:
    """Store a complaint. The audit log contains the hash of the evidence, not its text."""
    evidence = read_json(command.evidence_json)
    own_id = command.dispute_id
    batch.store(DISPUTES, own_id, command, id=own_id, evidence=evidence)
    batch.record(
        AuditEventType.DISPUTE_OPENED,
        ("dispute", command.dispute_id),
        workflowId=command.workflow_id,
        nodeId=command.node_id,
        complainantDid=command.complainant_did,
        respondentDid=command.respondent_did,
        disputeType=command.dispute_type,
        evidenceHash=hash_text(evidence),
    )
    escrow = batch.cache.escrows.get(command.workflow_id or "")
    payer_did = None if escrow is None else escrow.payer_did
    _add_parties((command.complainant_did, command.respondent_did), payer_did, batch)
    return {"disputeId": command.dispute_id}


@plans(ResolveDispute, load=load_dispute)
def plan_resolve_dispute(command: ResolveDispute, batch: Batch) -> Result:
    """Decide a dispute.

    Steps: (1) check that it is open, (2) check the refund against the decision and the payments,
    (3) refund line by line, (4) slash the stake locked for the node if fraud is upheld, (5) store
    the decision.
    """
    stored: DisputeReads | None = batch.loaded
    if stored is None:  # (1)
        raise not_found(f"the dispute {command.dispute_id} is not known")
    if stored.status != "open":
        raise conflict(f"the dispute is {stored.status}, expected open")
    lines = stored.disputed_lines()
    _check_refund(command, stored, lines, batch)  # (2)
    refunding = _Refunding(stored, batch)
    shares = share_refund(command.refund_micro, [line.left_micro for line in lines])
    for line, share in zip(lines, shares, strict=True):
        if share:
            refunding.refund(line, share)  # (3)
    guilt = _guilt(command, stored)
    slashed_micro = 0 if guilt is None else slash_guilty(guilt, batch)  # (4)
    batch.store(  # (5)
        RESOLVED_DISPUTES,
        command.dispute_id,
        command,
        refunding,
        id=command.dispute_id,
        refund_asked_micro=command.refund_micro,
        resolved_by_did=command.actor_did,
    )
    batch.record(
        AuditEventType.DISPUTE_RESOLVED,
        ("dispute", command.dispute_id),
        status=command.status,
        workflowId=stored.workflow_id,
        refundAskedCredits=credits_text(command.refund_micro),
        refundedCredits=credits_text(refunding.refunded_micro),
        shortCredits=credits_text(refunding.short_micro),
        slashedCredits=credits_text(slashed_micro),
        entryIds=refunding.entry_ids,
    )
    _add_parties((stored.complainant_did, stored.respondent_did), stored.payer_did, batch)
    return {
        "disputeId": command.dispute_id,
        "refundedMicro": refunding.refunded_micro,
        "shortMicro": refunding.short_micro,
        "slashedMicro": slashed_micro,
    }


def _add_parties(sides: tuple[str, str | None], payer_did: str | None, batch: Batch) -> None:
    """Show the audit entry to both sides, to the workflow's payer, and to the agent's owner.

    The agent is the side that is not the payer.
    """
    batch.add_parties(*sides, payer_did)
    if payer_did is not None:
        agents = (batch.cache.agents.get(did) for did in sides if did and did != payer_did)
        batch.add_parties(*(agent.owner_did for agent in agents if agent is not None))


def _check_refund(
    command: ResolveDispute, stored: DisputeReads, lines: list[PaidLine], batch: Batch
) -> None:
    if command.refund_micro == 0:
        return
    is_payers = stored.complainant_did == stored.payer_did
    wanted = (COMPLAINANT if is_payers else RESPONDENT, SPLIT)
    if command.status not in wanted:
        raise invalid(
            f"creditsRefunded: got a refund with status {command.status},"
            f" expected one with {' or '.join(wanted)}"
        )
    left_micro = sum(line.left_micro for line in lines)
    if command.refund_micro > left_micro:
        raise invalid(
            f"creditsRefunded: got {credits_text(command.refund_micro)},"
            f" expected at most the {credits_text(left_micro)} that are still paid"
        )


def _guilt(command: ResolveDispute, stored: DisputeReads) -> Guilt | None:
    """Return the reason and amount of a slash for fraud against the workflow's payer; None: fraud
    is not upheld."""
    agent_did, payer_did = stored.respondent_did, stored.payer_did
    is_payers = payer_did is not None and stored.complainant_did == payer_did
    is_upheld = stored.dispute_type == "fraud" and command.status == COMPLAINANT
    if not (is_upheld and is_payers) or agent_did is None:
        return None
    assert payer_did is not None, stored
    assert stored.workflow_id is not None, stored
    return Guilt(
        agent_did=agent_did,
        workflow_id=stored.workflow_id,
        node=stored.node_id,
        payer_did=payer_did,
        locks=stored.locks,
        bps=command.slash_bps,
        reason=SlashTrigger.FRAUD_DISPUTE,
        evidence={"disputeId": command.dispute_id},
    )


class _Refunding:
    """The refund entries of one decision, and their sums."""

    def __init__(self, stored: DisputeReads, batch: Batch) -> None:
        self._stored = stored
        self._batch = batch
        self.entry_ids: list[int] = []
        self.refunded_micro = 0
        self.short_micro = 0

    def refund(self, line: PaidLine, micro: int) -> None:
        """Refund a share of a line to the payer. Each source gives as much as it has (money.md,
        Disputes and refunds)."""
        did, cache = line.agent_did, self._batch.cache
        wallet, locked, free = wallet_address(did), stake_locked_address(did), stake_address(did)
        sources = RefundSources(*map(cache.balance, (wallet, FEE_ADDRESS, locked, free)))
        split = split_refund(micro, paid=line.paid, refunded=line.refunded, sources=sources)
        payer_did = self._stored.payer_did
        assert payer_did is not None, "money comes back to the payer of a workflow"
        payer = self._batch.account(wallet_address(payer_did), "wallet", payer_did)
        workflow_id = self._stored.workflow_id
        for address, part, *said in (
            (wallet, split.wallet_micro, "refund", "refund of a disputed payment"),
            (FEE_ADDRESS, split.fee_micro, "fee_refund", "refund of a disputed payment's fee"),
            (locked, split.stake_locked_micro, "stake_refund", "refund out of locked stake"),
            (free, split.stake_free_micro, "stake_refund", "refund out of stake"),
        ):
            source = cache.accounts.get(address)
            self.entry_ids += self._batch.transfer(
                source, payer, part, *said, workflow_id=workflow_id, node_id=line.line
            )
        if split.stake_locked_micro or split.stake_free_micro:
            stake_accounts(did, self._batch)
        self.refunded_micro += split.refunded_micro
        self.short_micro += split.short_micro


@plans(GiveFeedback, reads=keys_of(agent_dids="agent_did"), reuses_key=True)
def plan_give_feedback(command: GiveFeedback, batch: Batch) -> Result:
    """Store a payer's rating; its key allows one per workflow and agent."""
    rating = f"{command.rating_milli // 1000}.{command.rating_milli % 1000:03d}"
    comment = command.comment or None
    batch.store(FEEDBACK_GIVEN, command.key, command, rating=rating, comment=comment)
    batch.record(
        AuditEventType.FEEDBACK_GIVEN,
        ("agent", command.agent_did),
        workflowId=command.workflow_id,
        rating=rating,
    )
    batch.add_parties(command.payer_did)
    return {"agentDid": command.agent_did}


async def dispute_row(reader: LedgerReader, dispute_id: str) -> RowDict | None:
    """Return the row of a dispute, None if there is none."""
    return await reader.row(sql.select(dispute).where(dispute.c.id == dispute_id))


async def dispute_rows(
    reader: LedgerReader, *, party_did: str | None, before_id: str | None, **page: Any
) -> list[RowDict]:
    """Return disputes, newest first.

    Args:
        party_did: only disputes of this DID and of the agents whose money belongs to it; None: all.
        page: `limit`, `offset`, and the filters `status` and `workflow_id`.
    """
    query = sql.select(dispute)
    if party_did is not None:
        parties = sql.union_all(
            sql.select(sql.literal(party_did).label("did")), money_agents(party_did)
        ).subquery()
        sides = (
            sql.select(dispute.c.id).where(side.in_(sql.select(parties.c.did)))
            for side in (dispute.c.complainant_did, dispute.c.respondent_did)
        )
        query = query.where(dispute.c.id.in_(sql.union(*sides)))
    return await reader.listed(query, "id", before_id, is_newest_first=True, **page)


async def feedback_rows(reader: LedgerReader, workflow_id: str) -> list[RowDict]:
    """Return a payer's feedback for the agents of a workflow, oldest first."""
    query = (
        sql.select(feedback)
        .where(feedback.c.workflow_id == workflow_id)
        .order_by(feedback.c.created_ms, feedback.c.agent_did)
    )
    return await reader.rows(query)
