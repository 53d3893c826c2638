"""The stored rows that a barrier command is planned by: invoices, a dispute, a node, the money of
an agent.

Values only, of the one command at hand; ledger/writer/barrier_loading.py reads them. money.md
(Disputes and refunds, Invoices); decision signed-requests-and-claims.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.market.settlement import PaymentSplit


@dataclass(frozen=True, slots=True)
class InvoiceReads:
    """What is in the way of an invoice.

    `same_id`: the invoice that already is what is asked for; `overlapping_id`: another of this
    payer whose period overlaps. `is_stale`: entries have come since its content was read.
    """

    same_id: str | None = None
    overlapping_id: str | None = None
    is_stale: bool = False


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


@dataclass(frozen=True, slots=True)
class SlashReads:
    """A node that was dispatched: whose it is, and what is locked with its attempt."""

    payer_did: str
    agent_did: str | None
    attempt: int
    locked_micro: int


@dataclass(frozen=True, slots=True)
class CollectReads:
    """The owner of an agent, and how much of the agent's money the owner may not collect.

    `is_owners`: the agent's money is the owner's. `disputed_micro`: payments to the agent under an
    open dispute, micro-credits. `given_micro`: what was deposited for an unproven claim's DID, or
    inherited by it, micro-credits.
    """

    owner_did: str
    is_owners: bool
    disputed_micro: int
    given_micro: int


BarrierReads = InvoiceReads | DisputeReads | SlashReads | CollectReads
