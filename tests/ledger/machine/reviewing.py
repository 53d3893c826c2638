"""What was paid, looked at afterwards: disputes and invoices over the model's payments.

Plain lists and sums, as in model.py. Rules: money.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import ErrorCode
from core.market.refund import RefundSources, share_refund, split_refund
from core.market.settlement import PaymentSplit
from tests.ledger.machine.model import BPS, Line, MoneyModel

INVOICE_FEE_BPS = 30


@dataclass
class Complaint:
    """A dispute as it was opened. `payer`: who paid for the workflow it is about, if for any."""

    id: str
    complainant: str
    respondent: str | None
    kind: str
    workflow_id: str | None = None
    node: str | None = None
    payer: str | None = None
    is_open: bool = True

    @property
    def is_payers(self) -> bool:
        """Whether the payer complains of an agent, and not the other way round."""
        return self.complainant == self.payer


@dataclass
class Back:
    """Money that came back to a payer by a refund."""

    workflow_id: str
    payer: str
    micro: int
    at_ms: int
    invoice: str | None = None


@dataclass
class Invoice:
    """An invoice: `workflow_id` or a period, and whether it was voided."""

    id: str
    payer: str
    start_ms: int
    end_ms: int
    workflow_id: str | None
    micro: int
    status: str = "pending"

    @property
    def cents(self) -> tuple[int, int, int]:
        """Subtotal, fee and total; each rounded once and half up (R2)."""
        subtotal = (2 * self.micro + 10_000) // 20_000
        fee = (2 * subtotal * INVOICE_FEE_BPS + BPS) // (2 * BPS)
        return subtotal, fee, subtotal + fee


@dataclass
class Decision:
    """What comes of a decided dispute, micro-credits; or why it is refused."""

    refunded: int = 0
    short: int = 0
    slashed: int = 0
    error: ErrorCode | None = None


class Reviews:
    """Disputes and invoices; moves what they move in the model."""

    def __init__(self, model: MoneyModel) -> None:
        self.model = model
        self.complaints: list[Complaint] = []
        self.backs: list[Back] = []
        self.invoices: list[Invoice] = []

    # -- disputes ---------------------------------------------------------------------------------

    def disputed(self, complaint: Complaint) -> list[Line]:
        """Return the payments that a dispute is about, none that was paid to oneself (case 18)."""
        agent = complaint.respondent if complaint.is_payers else complaint.complainant
        return [
            line
            for line in self.model.lines
            if line.workflow_id == complaint.workflow_id
            and complaint.node in (None, line.node)
            and agent in (None, line.agent)
            and line.agent != line.payer
        ]

    def decide(
        self, complaint: Complaint, status: str, micro: int, slash_bps: int, now_ms: int
    ) -> Decision:
        """Decide a dispute: the refund first, then what fraud costs."""
        if not complaint.is_open:
            return Decision(error=ErrorCode.CONFLICT)
        lines = self.disputed(complaint)
        favours = "resolved_complainant" if complaint.is_payers else "resolved_respondent"
        if micro and status not in (favours, "resolved_split"):
            return Decision(error=ErrorCode.INVALID_REQUEST)
        if micro > sum(line.left for line in lines):
            return Decision(error=ErrorCode.INVALID_REQUEST)
        complaint.is_open = False
        decision = Decision()
        shares = share_refund(micro, [line.left for line in lines])
        for line, share in zip(lines, shares, strict=True):
            if share:
                self._refund(line, share, decision, now_ms)
        if complaint.kind == "fraud" and complaint.is_payers and status == "resolved_complainant":
            decision.slashed = self._slash(complaint, slash_bps)
        return decision

    def _refund(self, line: Line, micro: int, decision: Decision, now_ms: int) -> None:
        """Give a part of a payment back, as far as its receivers have it (case 15)."""
        model, agent = self.model, line.agent
        split = split_refund(
            micro,
            paid=line.paid,
            refunded=line.back,
            sources=RefundSources(
                model.wallets.get(agent, 0),
                model.fee,
                model.locked.get(agent, 0),
                model.stakes.get(agent, 0),
            ),
        )
        line.back = PaymentSplit(
            line.back.agent_micro + split.agent_micro, line.back.fee_micro + split.fee_micro
        )
        model.fee -= split.fee_micro
        for purse, part in (
            (model.wallets, split.wallet_micro),
            (model.locked, split.stake_locked_micro),
            (model.stakes, split.stake_free_micro),
        ):
            if part:
                purse[agent] -= part
        model.wallets[line.payer] += split.refunded_micro
        decision.refunded += split.refunded_micro
        decision.short += split.short_micro
        if split.refunded_micro:
            self.backs.append(Back(line.workflow_id, line.payer, split.refunded_micro, now_ms))

    def _slash(self, complaint: Complaint, slash_bps: int) -> int:
        """Take a share of what is locked for the disputed nodes; the rest is free (case 27)."""
        agent, workflow_id = complaint.respondent, complaint.workflow_id
        if agent is None or workflow_id is None:
            return 0
        works = self.model.contracts[workflow_id].works
        return sum(
            self.model.free((workflow_id, name), agent, slash_bps)
            for name in sorted(works)
            if complaint.node in (None, name) and works[name].agent == agent
        )

    # -- invoices ---------------------------------------------------------------------------------

    def standing(
        self, payer: str, start_ms: int, end_ms: int, workflow_id: str | None
    ) -> Invoice | ErrorCode | None:
        """Return the invoice that is what is asked for, or CONFLICT where another overlaps it."""
        for invoice in self.invoices:
            if invoice.status == "void" or invoice.payer != payer:
                continue
            if workflow_id is not None or invoice.workflow_id is not None:
                if invoice.workflow_id == workflow_id:
                    return invoice
            elif (invoice.start_ms, invoice.end_ms) == (start_ms, end_ms):
                return invoice
            elif invoice.start_ms < end_ms and start_ms < invoice.end_ms:
                return ErrorCode.CONFLICT
        return None

    def invoice(
        self,
        invoice_id: str,
        payer: str,
        period: tuple[int, int],
        workflow_id: str | None,
        now_ms: int,
    ) -> Invoice | ErrorCode:
        """Issue an invoice over what is on no other, or return the one that stands."""
        start_ms, end_ms = period
        if workflow_id is None and end_ms > now_ms:
            return ErrorCode.INVALID_REQUEST
        if (found := self.standing(payer, start_ms, end_ms, workflow_id)) is not None:
            return found
        if workflow_id is not None and self.model.contracts[workflow_id].is_running:
            return ErrorCode.CONFLICT
        taken: list[Line | Back] = [
            item
            for item in (*self.model.lines, *self.backs)
            if item.payer == payer
            and (item.workflow_id == workflow_id or workflow_id is None)
            and (start_ms <= item.at_ms < end_ms or workflow_id is not None)
        ]
        free = [item for item in taken if item.invoice is None]
        paid = [item.gross for item in free if isinstance(item, Line)]
        if workflow_id is not None and len(free) < len(taken) and not paid:
            return ErrorCode.CONFLICT
        micro = max(0, sum(paid) - sum(item.micro for item in free if isinstance(item, Back)))
        for item in free:
            item.invoice = invoice_id
        invoice = Invoice(invoice_id, payer, start_ms, end_ms, workflow_id, micro)
        self.invoices.append(invoice)
        return invoice

    def settle(self, invoice: Invoice, status: str) -> None:
        """Mark an invoice paid, or void: then what is on it is on none (case 33a)."""
        invoice.status = status
        if status == "void":
            for item in (*self.model.lines, *self.backs):
                if item.invoice == invoice.id:
                    item.invoice = None
