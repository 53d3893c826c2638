"""Rules of how work is judged: disputes, administrators' slashes, invoices, counts of outcomes."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from core.errors import ErrorCode, ServiceError
from core.money import MICRO_MAX
from ledger.commands import Outcome, OutcomeStatus
from ledger.features.accounts import CollectCredits
from ledger.features.agents import RebuildReputation
from ledger.features.invoices import (
    CreateInvoice,
    SettleInvoice,
    invoice_settled_key,
    is_same,
    standing_invoice,
    with_content,
)
from ledger.features.reputation import corrections, read_compared
from tests.ledger.disputing import about, decide, slash
from tests.ledger.machine.base import MoneyMachine, any_index, asking, four, share_of, shares
from tests.ledger.machine.model import Line
from tests.ledger.machine.reviewing import Complaint, Invoice
from tests.ledger.making import AT, new_id, new_key
from tests.ledger.test_stakes import stake

# It reads all of history.
STEPS_BETWEEN_REBUILDS = 100
STEPS_BETWEEN_INVOICES = 5


class ReviewRules(MoneyMachine):
    """Refunds, slashes for fraud, bills."""

    @rule(share=shares, asking=asking)
    def collect(self, share: int, asking: str) -> None:
        """Collect a share (percent) of an agent's wallet; above 100, or a stranger, is refused."""
        did, owner = self.agents[0], self.owner_of(self.agents[0])
        actor, wallet = self.actor(did, asking), self.model.wallets[did]
        # Payments under open disputes are not free; a part of them may be refunded already.
        disputed = {one.workflow_id for one in self.reviews.complaints if one.is_open}
        lines = [one for one in self.model.lines if one.agent == did]
        free = wallet - sum(one.gross for one in lines if one.workflow_id in disputed)
        micro = min(share_of(max(free, 1), share or 1), MICRO_MAX)
        micro = wallet + 1 if share > 100 else micro
        command = CollectCredits(
            key=new_key(), actor_did=actor, is_admin=False, agent_did=did, amount_micro=micro
        )
        if actor != owner:
            self.refuses(command, ErrorCode.FORBIDDEN)
        elif share > 100:
            self.refuses(command, ErrorCode.CONFLICT)
        elif free > 0:
            self.model.wallets[did] -= micro
            self.model.wallets[owner] += micro
            result = self.applies(command)
            told = (result["balanceMicro"], result["ownerBalanceMicro"])
            assert told == (self.model.wallets[did], self.model.wallets[owner])

    @precondition(lambda self: self.works(at_work=True))
    @rule(
        index=any_index,
        is_of_node=st.booleans(),
        slash_bps=st.sampled_from([10_000, 2_500, 0]),
    )
    def uphold_fraud(self, index: int, is_of_node: bool, slash_bps: int) -> None:
        """Fraud at work that goes on: what is locked for it goes, and nothing else."""
        busy = self.works(at_work=True)
        flow, work = busy[index % len(busy)]
        complaint = Complaint(
            new_id(),
            flow.payer,
            work.agent,
            "fraud",
            flow.id,
            work.name if is_of_node else None,
            flow.payer,
        )
        self.complained(complaint)
        self.decided(complaint, "resolved_complainant", 0, slash_bps)

    @precondition(lambda self: self.works(at_work=True))
    @rule(
        index=any_index,
        is_its_agents=st.sampled_from([True, True, False]),
        slash_bps=st.sampled_from([10_000, 2_500, 0]),
    )
    def slash_by_administrator(self, index: int, is_its_agents: bool, slash_bps: int) -> None:
        """An administrator takes of what is locked for a node; no other agent loses by it."""
        busy = self.works(at_work=True)
        flow, work = busy[index % len(busy)]
        did = work.agent if is_its_agents else "did:test:former"
        command = slash(flow, slash_bps, agent_did=did, node=work.name)
        if not is_its_agents:
            self.refuses(command, ErrorCode.CONFLICT)
            return
        slashed = self.model.free((flow.id, work.name), did, slash_bps)
        assert self.applies(command) == {
            "payerDid": flow.payer,
            "slashedMicro": slashed,
            "freeMicro": self.model.stakes.get(did, 0),
            "lockedMicro": self.model.locked.get(did, 0),
        }

    @precondition(lambda self: self.model.lines)
    @rule(
        index=any_index,
        is_payers=st.sampled_from([True, True, True, False]),
        is_of_node=st.booleans(),
        is_named=st.booleans(),
        is_fraud=st.booleans(),
        is_broke=st.booleans(),
        share=st.integers(0, 110),
        status=st.sampled_from(
            ["resolved_complainant"] * 3 + ["resolved_respondent", "resolved_split", "dismissed"]
        ),
        slash_bps=st.sampled_from([10_000, 2_500]),
        is_later=st.booleans(),
    )
    def complain(
        self,
        index: int,
        is_payers: bool,
        is_of_node: bool,
        is_named: bool,
        is_fraud: bool,
        is_broke: bool,
        share: int,
        status: str,
        slash_bps: int,
        is_later: bool,
    ) -> None:
        """A dispute about a payment or a whole workflow, decided at once or `later`."""
        lines = self.model.lines
        line = lines[index % len(lines)]
        complaint = Complaint(
            new_id(),
            line.payer if is_payers else line.agent,
            (line.agent if is_named else None) if is_payers else line.payer,
            "fraud" if is_fraud else "quality",
            line.workflow_id,
            line.node if is_of_node else None,
            line.payer,
        )
        self.complained(complaint)
        if is_broke and line.agent in self.agents and self.model.wallets[line.agent]:
            self.stakes_all(line.agent)
        if not is_later:
            self.decided(complaint, status, share, slash_bps)

    def refundable(self) -> list[Line]:
        """Return the payments of which something is left that a refund can take."""
        return [line for line in self.model.lines if line.left and line.agent in self.agents]

    @precondition(lambda self: self.refundable())
    @rule(index=any_index, share=st.integers(1, 100), is_broke=st.booleans())
    def refund(self, index: int, share: int, is_broke: bool) -> None:
        """A payer gets a share of a payment back, from the agent's wallet or from its stake."""
        lines = self.refundable()
        line = lines[index % len(lines)]
        complaint = Complaint(
            new_id(), line.payer, line.agent, "quality", line.workflow_id, line.node, line.payer
        )
        self.complained(complaint)
        if is_broke:
            self.stakes_all(line.agent)
        self.decided(complaint, "resolved_complainant", share, 0)

    def stakes_all(self, did: str) -> None:
        """Leave nothing in an agent's wallet that fits into its stake: refunds come out of that."""
        micro = min(self.model.wallets[did], self.model.room_of_stake(did))
        if micro <= 0:
            return
        self.applies(stake(micro, agent=did, actor=did))
        self.model.deposit_stake(did, did, micro)

    def complained(self, complaint: Complaint) -> None:
        self.applies(
            about(
                None,
                dispute_id=complaint.id,
                workflow_id=complaint.workflow_id,
                node_id=complaint.node,
                complainant_did=complaint.complainant,
                respondent_did=complaint.respondent,
                dispute_type=complaint.kind,
            )
        )
        self.reviews.complaints.append(complaint)

    @precondition(lambda self: self.reviews.complaints)
    @rule(
        index=any_index,
        share=st.integers(0, 110),
        status=st.sampled_from(["resolved_complainant", "resolved_split", "dismissed"]),
        slash_bps=st.sampled_from([10_000, 2_500]),
        is_repeated=st.booleans(),
    )
    def decide(
        self, index: int, share: int, status: str, slash_bps: int, is_repeated: bool
    ) -> None:
        """An earlier dispute is decided; one that was decided before stays so."""
        complaints = self.reviews.complaints
        complaint = complaints[index % len(complaints)]
        self.decided(complaint, status, share, slash_bps)
        if is_repeated and not complaint.is_open:
            again = decide(about(None, dispute_id=complaint.id), 0, status)
            self.refuses(again, ErrorCode.CONFLICT)

    def decided(self, complaint: Complaint, status: str, share: int, slash_bps: int) -> None:
        left = sum(line.left for line in self.reviews.disputed(complaint))
        micro = share_of(left, share)
        command = decide(about(None, dispute_id=complaint.id), micro, status, slash_bps)
        outcome = self.one(command)
        expected = self.reviews.decide(complaint, status, micro, slash_bps, self.now)
        assert outcome.error is expected.error
        if expected.error is None:
            assert outcome.result == {
                "disputeId": complaint.id,
                "refundedMicro": expected.refunded,
                "shortMicro": expected.short,
                "slashedMicro": expected.slashed,
            }

    # -- invoices ---------------------------------------------------------------------------------

    @precondition(lambda self: self.is_due("invoice", STEPS_BETWEEN_INVOICES))
    @rule(
        payer=four,
        start=st.integers(0, 9),
        length=st.integers(1, 10),
        is_early=st.sampled_from([False] * 5 + [True]),
    )
    def invoice_a_period(self, payer: int, start: int, length: int, is_early: bool) -> None:
        """Bill some tenths of the time so far; one that has not passed is refused."""
        tenth = (self.now - AT) // 10 + 1
        start_ms = AT + start * tenth
        end_ms = start_ms + length * tenth
        end_ms = end_ms if is_early else max(start_ms + 1, min(end_ms, self.now))
        self.invoiced(self.payers[payer], (start_ms, end_ms), None)

    @precondition(
        lambda self: self.model.contracts and self.is_due("invoice", STEPS_BETWEEN_INVOICES)
    )
    @rule(index=any_index)
    def invoice_a_workflow(self, index: int) -> None:
        names = list(self.model.contracts)
        name = names[index % len(names)]
        self.invoiced(self.model.contracts[name].payer, (0, 0), name)

    def invoiced(self, payer: str, period: tuple[int, int], workflow_id: str | None) -> None:
        command = CreateInvoice(
            key=new_key(),
            actor_did=payer,
            invoice_id=new_id(),
            payer_did=payer,
            period_start_ms=period[0],
            period_end_ms=period[1],
            workflow_id=workflow_id,
        )
        self.done_now("invoice")
        outcome = self.issued(command)
        expected = self.reviews.invoice(command.invoice_id, payer, period, workflow_id, self.now)
        if isinstance(expected, ErrorCode):
            assert outcome.error is expected
            return
        is_new = expected.id == command.invoice_id
        assert outcome.result == {"invoiceId": expected.id, "isNew": is_new}
        if is_new:
            stored = self.auditor.connection.execute(
                "SELECT subtotal_micro, subtotal_cents, protocol_fee_cents, total_cents"
                " FROM invoice WHERE id = %s",
                (expected.id,),
            ).fetchone()
            assert stored == (expected.micro, *expected.cents)

    def issued(self, command: CreateInvoice) -> Outcome:
        """Add the invoice up outside the writer, then commit it."""
        period = (command.period_start_ms, command.period_end_ms)
        payer, workflow_id = command.payer_did, command.workflow_id
        row = self.read(lambda reader: standing_invoice(reader, payer, period, workflow_id))
        if row is not None and is_same(row, period, workflow_id):
            result = {"invoiceId": row["id"], "isNew": False}
            return Outcome(OutcomeStatus.APPLIED, result)
        try:
            return self.one(self.read(lambda reader: with_content(reader, command)))
        except ServiceError as refusal:
            return Outcome(OutcomeStatus.REJECTED, {}, refusal.code, refusal.detail)

    @precondition(lambda self: self.reviews.invoices)
    @rule(index=any_index, status=st.sampled_from(["paid", "void"]))
    def settle_an_invoice(self, index: int, status: str) -> None:
        """Pay or void it, once: the other way round is refused, the same once more is a repeat."""
        invoices = self.reviews.invoices
        invoice: Invoice = invoices[index % len(invoices)]
        command = SettleInvoice(
            key=invoice_settled_key(invoice.id),
            request_hash=status.encode(),
            actor_did="did:test:admin",
            invoice_id=invoice.id,
            status="paid" if status == "paid" else "void",
        )
        outcome = self.one(command)
        if invoice.status == "pending":
            assert outcome.status is OutcomeStatus.APPLIED
            self.reviews.settle(invoice, status)
        elif invoice.status == status:
            assert outcome.status is OutcomeStatus.REPEATED
        else:
            assert outcome.error is ErrorCode.KEY_REUSED

    # -- counts -----------------------------------------------------------------------------------

    @precondition(lambda self: self.is_due("rebuild", STEPS_BETWEEN_REBUILDS))
    @rule()
    def rebuild_reputation(self) -> None:
        """What was counted step by step is what history says."""
        self.done_now("rebuild")
        counts, audit_id = self.read(read_compared)
        changes = corrections(counts)
        rebuild = RebuildReputation(
            key=new_key(), actor_did="did:test:admin", changes=changes, read_audit_id=audit_id
        )
        assert self.applies(rebuild) == {"changed": 0}
