"""The rows that the decision about a dispute is planned by: it, its payments, locked stakes.

Read by the writer in the moment it plans the decision, so that nothing can come between. money.md
(Disputes and refunds); decision refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

from core.market.settlement import PaymentSplit
from ledger.connections.connecting import fetch
from ledger.disputes.dispute_commands import ResolveDispute
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import wallet_address

_REFUNDS: Final = "e.kind IN ('refund', 'fee_refund', 'stake_refund')"
_DISPUTE: Final = """
SELECT d.status, d.workflow_id::text, d.complainant_did, d.respondent_did, d.node_id,
    d.dispute_type, w.payer_did
FROM callboard.dispute d LEFT JOIN callboard.workflow w ON w.id = d.workflow_id
WHERE d.id = %(dispute)s::uuid
"""
# Of a line that was all fee, only the node's row knows the agent.
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
    FROM callboard.entry e WHERE e.workflow_id = %(workflow)s::uuid AND {_REFUNDS}
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
    """What one payment line was paid, and what of it has come back."""

    line: str
    agent_did: str
    paid: PaymentSplit
    refunded: PaymentSplit

    @property
    def left_micro(self) -> int:
        """What the payer still has paid, gross, micro-credits."""
        paid = self.paid.agent_micro + self.paid.fee_micro
        return paid - self.refunded.agent_micro - self.refunded.fee_micro


@dataclass(frozen=True, slots=True)
class DisputeReads:
    """A dispute as stored, with the payments of its workflow, in the order of settlement.

    `locks`: of the respondent's open attempts at the disputed nodes, each with its node, its number
    and the stake locked with it, micro-credits.
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
        """The agent in it, whichever side it is on; None when it is about several."""
        if self.workflow_id is not None and self.complainant_did != self.payer_did:
            return self.complainant_did
        return self.respondent_did

    def disputed_lines(self) -> list[PaidLine]:
        """Return the payments it is about; what a payer paid to itself is none of them."""
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
    """Return a dispute with its payments, None when it is not known; its accounts are needed."""
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
    read_set.addresses.add(wallet_address(stored.payer_did))
    agents = {line.agent_did for line in stored.disputed_lines()}
    if stored.agent_did is not None:
        agents.add(stored.agent_did)
    read_set.agent_dids |= agents
    for did in agents:
        read_set.addresses.add(wallet_address(did))
        read_set.add_stake(did)
    return stored
