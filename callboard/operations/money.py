"""Operations about money: accounts, prices, stakes, quotas, invoices, disputes and receipts.

Reference: money.md (Entries, Invoices, Disputes and refunds, Quotas); features.md (Signed results,
Receipts).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callboard import replies
from callboard.calls import (
    Call,
    Steps,
    keyed,
    segment,
    single,
)
from callboard.operations.declaring import (
    Iteration,
    listing,
    listing_of,
    operation,
    reading,
    sending,
)
from callboard.replies import Credits
from core.records.api.record import PageQuery
from core.records.api.shape import Json


class MoneyOperations:
    """What is paid, owed and proven."""

    @sending("GET", "/v1/ledger/balance", replies.Balance)
    def balance(self) -> None:
        """Read the caller's balance in credits. Reference: money.md (Accounts)."""

    @sending("POST", "/v1/ledger/deposit", replies.Deposited, amount_credits="amount")
    def deposit(
        self,
        amount_credits: float | str,
        *,
        owner_did: str | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Add credits to an account; safe to retry. Reference: money.md (Accounts).

        Args:
            amount_credits: credits, at most 6 decimals; text keeps decimals exact.
            owner_did: the owner of the account, the caller by default.
            idempotency_key: the key to use instead of a fresh one.
        """

    transactions = listing("/v1/ledger/transactions", replies.EntriesQuery, replies.EntryPage)
    history = listing_of("/v1/ledger/{}/history", PageQuery, replies.HistoryPage)
    account = reading("/v1/ledger/accounts/{}", replies.Account)
    price = reading("/v1/capabilities/{}/price", replies.Price)

    @operation(replies.PriceSet)
    def set_price(
        self,
        capability_id: str,
        *,
        price_cents: int | None = None,
        input_rate: Credits | None = None,
        output_rate: Credits | None = None,
    ) -> Steps:
        """Register a capability's price: cents a node, or credits per token; for administrators.

        Args:
            price_cents: whole cents.
            input_rate: credits per input token; with `output_rate`, instead of cents.
        """
        body: Json = {} if price_cents is None else {"price_cents": price_cents}
        if input_rate is not None or output_rate is not None:
            rates = {"inputRate": input_rate, "outputRate": output_rate}
            body["pricing"] = {"model": "per-token", **rates}
        return single(Call("PUT", f"/v1/capabilities/{segment(capability_id)}/price", body=body))

    stake = reading("/v1/stakes/{}", replies.Stake)

    @sending("POST", "/v1/stakes", replies.StakeMoved, amount_credits="amount")
    def deposit_stake(self, amount_credits: Credits, *, agent_did: str | None = None) -> None:
        """Put credits at stake for an agent, the caller unless another is named."""

    @sending("POST", "/v1/stakes/unstake", replies.StakeMoved, amount_credits="amount")
    def withdraw_stake(self, amount_credits: Credits, *, agent_did: str | None = None) -> None:
        """Take back stake that is not locked."""

    @sending("POST", "/v1/agents/{agent_did}/collect", replies.Collected, amount_credits="amount")
    def collect(self, agent_did: str, *, amount_credits: Credits | None = None) -> None:
        """Move free credits from an agent's wallet to its owner's; without an amount: all."""

    @sending("POST", "/v1/stakes/slash", replies.StakeSlashed)
    def slash_stake(self, agent_did: str, workflow_id: str, node_id: str, reason: str) -> None:
        """Take what an agent has locked for a node, for its payer; for administrators."""

    reputation = reading("/v1/reputation/{}", replies.Reputation)

    @sending("POST", "/v1/reputation/rebuild", replies.ReputationCompared)
    def rebuild_reputation(self, *, check: bool = False) -> None:
        """Compare every agent's counts with history; unless only checked, set them to it."""

    quota = reading("/v1/quotas/{}", replies.Quota)

    @operation(replies.QuotaSet)
    def set_quota(
        self,
        did: str,
        *,
        workflows_per_day: int | None = None,
        concurrent_workflows: int | None = None,
        spend_per_day_cents: int | None = None,
    ) -> Steps:
        """Limit what a payer may publish; what is left out has no limit. For administrators."""
        body = {
            "maxWorkflowsPerDay": workflows_per_day,
            "maxConcurrentWorkflows": concurrent_workflows,
            "maxSpendPerDayCents": spend_per_day_cents,
        }
        return single(Call("POST", f"/v1/quotas/{segment(did)}", body=body, headers=keyed(None)))

    @sending("POST", "/v1/quotas/{did}/check", replies.QuotaCheck)
    def check_quota(self, did: str, *, estimated_spend_cents: int | None = None) -> None:
        """Ask whether a payer may publish now. Reference: money.md (Quotas)."""

    @sending("POST", "/v1/invoices", replies.InvoiceChanged)
    def create_invoice(
        self,
        *,
        payer_did: str | None = None,
        period_start: str | None = None,
        period_end: str | None = None,
        workflow_id: str | None = None,
    ) -> None:
        """Issue an invoice over a period (two ISO times) or a workflow. Reference: money.md
        (Invoices)."""

    invoice = reading("/v1/invoices/{}", replies.InvoiceWithLines)
    invoices = listing("/v1/invoices", replies.InvoicesQuery, replies.InvoicePage)

    @sending("POST", "/v1/invoices/{invoice_id}/pay", replies.InvoiceChanged)
    def pay_invoice(self, invoice_id: str) -> None:
        """Mark a pending invoice paid; for administrators."""

    @sending("POST", "/v1/invoices/{invoice_id}/void", replies.InvoiceChanged)
    def void_invoice(self, invoice_id: str) -> None:
        """Void a pending invoice; for administrators."""

    @sending("POST", "/v1/disputes", replies.DisputeOpened)
    def open_dispute(
        self,
        dispute_type: str,
        description: str,
        *,
        workflow_id: str | None = None,
        node_id: str | None = None,
        respondent_did: str | None = None,
        evidence: Mapping[str, Any] | None = None,
    ) -> None:
        """Complain about a workflow's work or pay. Reference: money.md (Disputes and refunds)."""

    dispute = reading("/v1/disputes/{}", replies.Dispute)
    disputes = listing("/v1/disputes", replies.DisputesQuery, replies.DisputePage)

    @sending(
        "POST",
        "/v1/disputes/{dispute_id}/resolve",
        replies.DisputeResolved,
        refund_credits="creditsRefunded",
    )
    def resolve_dispute(
        self,
        dispute_id: str,
        status: str,
        resolution: str,
        *,
        refund_credits: Credits | None = None,
    ) -> None:
        """Decide a dispute, perhaps with a refund to the payer; for administrators."""

    signed_results = listing_of(
        "/v1/trust/signed-results/{}", replies.SignedResultsQuery, replies.SignedResultPage
    )

    @sending("POST", "/v1/signed-results/{node_id}/verify", replies.ResultVerified)
    def verify_result(
        self,
        node_id: str,
        workflow_id: str,
        *,
        result: Any = None,
        result_hash: str | None = None,
        signature: str | None = None,
        public_key: str | None = None,
    ) -> None:
        """Compare a result with the stored one of a node, and verify its agent's signature.

        Args:
            result, result_hash: give one of the two; default: the stored result.
            public_key: base64; the key to verify with.
        """

    receipt = reading("/v1/receipts/{}", replies.Receipt)
    receipts_of = listing_of("/v1/receipts/{}", PageQuery, replies.ReceiptPage)
    receipts_of_workflow = listing_of("/v1/receipts/workflow/{}", PageQuery, replies.ReceiptPage)

    @operation(replies.ReceiptSubmitted)
    def submit_receipt(self, receipt: Mapping[str, Any]) -> Steps:
        """Submit the caller's receipt of a node, as its agent, the agent's owner or the payer.

        Args:
            receipt: with `workflowId` and `nodeId`.
        """
        return single(Call("POST", "/v1/receipts", body=dict(receipt), headers=keyed(None)))

    @sending("POST", "/v1/receipts/verify", replies.ReceiptVerified)
    def verify_receipt(self, receipt: Mapping[str, Any]) -> None:
        """Ask whether the deployment has signed a receipt."""

    iterate_transactions = Iteration(transactions)
    iterate_signed_results = Iteration(signed_results)
    iterate_receipts_of_workflow = Iteration(receipts_of_workflow)
    iterate_invoices = Iteration(invoices)
    iterate_disputes = Iteration(disputes)
