"""Client operations for the deployment (keys, audit log, webhooks, peers) and for money (accounts,
invoices, receipts).

Reference: money.md (Entries, Invoices, Disputes and refunds, Quotas, Signing keys, Checkpoints,
Checking the books); features.md (Signed results, Receipts, Webhooks, Peers, Routing between
regions, Subnets and policies); decision cluster-and-releases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from callboard import replies
from callboard.calls import (
    AUDIT_PAGE,
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
    removing,
    sending,
)
from callboard.replies import Credits
from core.records.api.record import PageQuery
from core.records.api.shape import Json


class ServiceOperations:
    """Operations on the deployment: keys, audit log, cluster, webhooks, peers and subnets."""

    @operation(replies.Health)
    def health(self) -> Steps:
        """Read the service's health, also while a part of the service is down; needs no key."""
        return single(Call("GET", "/health", any_status=True))

    @sending("POST", "/v1/keys", replies.KeyCreated)
    def create_key(
        self,
        owner_did: str,
        *,
        name: str | None = None,
        scopes: Sequence[str] | None = None,
        expires_at: str | None = None,
        rate_class: str | None = None,
    ) -> None:
        """Create an API key; only this reply contains the secret (`key`).

        Args:
            scopes: the scopes of the new key; default: the default scopes that the caller has.
            expires_at: the time at which the key expires, ISO 8601; default: never, or when the
                caller's own credential expires.
            rate_class: `standard` or `unlimited`; only administrators may set it.
        """

    keys = listing("/v1/keys", replies.KeysQuery, replies.KeyPage)

    @sending("POST", "/v1/keys/{key_id}/rotate", replies.KeyRotated, overlap_s="overlapSeconds")
    def rotate_key(self, key_id: str, *, overlap_s: int = 0) -> None:
        """Replace the secret of an API key; only this reply contains the new secret (`key`).

        Args:
            overlap_s: how long the current secret stays valid, at most 86,400 s. With 0, a caller
                that rotates its own key and loses the reply has no valid secret.
        """

    revoke_key = removing("/v1/keys/{}", replies.KeyRevoked, "keyId")
    audit = listing("/v1/audit", replies.AuditQuery, replies.AuditPage, limit=AUDIT_PAGE)
    audit_entry = reading("/v1/audit/{}", replies.AuditEntry)

    @sending("GET", "/v1/audit/checkpoint", replies.SignedCheckpoint)
    def audit_checkpoint(self, *, size: int | None = None) -> None:
        """Read a signed checkpoint of the audit log.

        Args:
            size: the id of an entry; the first checkpoint that covers this entry is returned. None:
                the newest checkpoint is returned.
        """

    @sending("GET", "/v1/audit/proof", replies.InclusionProof, entry_id="id")
    def audit_proof(self, entry_id: int, *, size: int | None = None) -> None:
        """Read the proof that the audit log holds an entry.

        Args:
            size: the size of the tree for which the proof is made; None: the size of the newest
                checkpoint.
        """

    @sending(
        "GET", "/v1/audit/consistency", replies.ConsistencyProof, from_size="from", to_size="to"
    )
    def audit_consistency(self, from_size: int, *, to_size: int | None = None) -> None:
        """Read the proof that the audit log continues an older state.

        Args:
            from_size: the number of entries in the older state.
            to_size: the number of entries in the newer state; None: the size of the newest
                checkpoint.
        """

    @sending("GET", "/v1/audit/verify", replies.AuditVerification, from_id="from")
    def check_audit(self, *, from_id: int | None = None, limit: int | None = None) -> None:
        """Let the service read stored audit entries again and check them.

        Args:
            from_id: the first entry to check; None: entry 1.
            limit: the number of entries to check, at most 10,000; None: 1,000.
        """

    @sending("GET", "/.well-known/callboard.json", replies.ServiceDescription)
    def service_description(self) -> None:
        """Read the service's name, the origin of its checkpoints and its signing keys."""

    @sending("POST", "/v1/trust/signing-key/rotate", replies.SigningKeyRotated)
    def rotate_signing_key(self) -> None:
        """Replace the deployment's signing key by a new one; for administrators."""

    @sending("GET", "/v1/cluster", replies.Cluster)
    def cluster(self) -> None:
        """Read the members of the cluster and their shards; for administrators."""

    @sending("POST", "/v1/cluster/machines/{machine}/drain", replies.MachineChanged)
    def drain_machine(self, machine: str) -> None:
        """Drain a machine: move its work to other machines. It stays drained until it is resumed.

        Args:
            machine: the machine's id, or a unique prefix of it with at least six characters.
        """

    @sending("POST", "/v1/cluster/machines/{machine}/resume", replies.MachineChanged)
    def resume_machine(self, machine: str) -> None:
        """End the drain of a machine, so that it takes work again.

        Args:
            machine: see `drain_machine`.
        """

    @sending("GET", "/v1/ledger/check", replies.BooksChecked)
    def books(self) -> None:
        """Read the newest result of the check of the books; for administrators."""

    @sending("POST", "/v1/ledger/check", replies.BooksRequested)
    def check_books(self) -> None:
        """Request a check of the books; `books` returns the result later; for administrators."""

    @sending("POST", "/v1/webhooks", replies.Webhook)
    def create_webhook(self, url: str, events: Sequence[str], *, secret: str | None = None) -> None:
        """Create a webhook: the service sends audit events to a URL.

        Only this reply contains the signing secret.

        Args:
            events: audit event types, or `*`.
            secret: `whsec_` and base64 of 24 to 64 bytes; None: the service makes a secret.
        """

    webhook = reading("/v1/webhooks/{}", replies.Webhook)
    webhooks = listing("/v1/webhooks", PageQuery, replies.WebhookPage)

    @sending("PATCH", "/v1/webhooks/{webhook_id}", replies.Webhook, new_url="url")
    def change_webhook(
        self,
        webhook_id: str,
        *,
        new_url: str | None = None,
        events: Sequence[str] | None = None,
        enabled: bool | None = None,
    ) -> None:
        """Change a webhook's URL or events, or pause or enable it; None keeps a value."""

    @operation(replies.Webhook)
    def rotate_webhook_secret(self, webhook_id: str) -> Steps:
        """Replace the signing secret; only this reply contains the new secret.

        For 24 hours, messages are also signed with the previous secret.
        """
        path, headers = f"/v1/webhooks/{segment(webhook_id)}", keyed(None)
        return single(Call("PATCH", path, body={"rotateSecret": True}, headers=headers))

    delete_webhook = removing("/v1/webhooks/{}", replies.Removed)

    @sending("POST", "/v1/webhooks/{webhook_id}/test", replies.WebhookDelivery)
    def test_webhook(self, webhook_id: str) -> None:
        """Send a message of the type `webhook.test` to the webhook."""

    deliveries = listing_of(
        "/v1/webhooks/{}/deliveries", replies.DeliveriesQuery, replies.DeliveryPage
    )

    @sending(
        "POST",
        "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver",
        replies.WebhookDelivery,
    )
    def redeliver(self, webhook_id: str, delivery_id: str) -> None:
        """Send an ended delivery again; its id stays the same."""

    @sending("POST", "/v1/federation/peers", replies.PeerAdded)
    def add_peer(
        self,
        endpoint: str,
        region: str,
        public_key: str,
        *,
        peer_id: str | None = None,
        did: str | None = None,
        capabilities: Sequence[str] | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Add a peer; the peer gets work after it has sent a heartbeat that its key signed.

        Args:
            endpoint: base URL of the peer's API.
            public_key: the peer's current public key, base64.
            did: the peer's DID; needed if the peer has rotated its key.
            capabilities: the capabilities that the peer may offer here; None: all.
        """

    peer = reading("/v1/federation/peers/{}", replies.Peer)
    peers = listing("/v1/federation/peers", replies.PeersQuery, replies.PeerPage)
    remove_peer = removing("/v1/federation/peers/{}", replies.Removed)

    @operation(replies.PeerHeartbeatTaken)
    def peer_heartbeat(self, heartbeat: Mapping[str, Any]) -> Steps:
        """Send a heartbeat that a peer has signed, or, as an operator, a heartbeat for a peer."""
        # The service refuses a signed heartbeat that it has already stored.
        path = "/v1/federation/peers/heartbeat"
        return single(
            Call("POST", path, body=dict(heartbeat), repeatable="signature" not in heartbeat)
        )

    peer_balance = reading("/v1/federation/peers/{}/balance", replies.PeerBalance)
    peer_statement = listing_of(
        "/v1/federation/peers/{}/statement", replies.StatementQuery, replies.Statement
    )
    check_peer = listing_of("/v1/federation/peers/{}/check", replies.CheckQuery, replies.PeerCheck)

    @sending(
        "POST", "/v1/federation/peers/{peer_id}/settle", replies.Settled, amount_credits="amount"
    )
    def settle_peer(self, peer_id: str, *, amount_credits: float | str | None = None) -> None:
        """Move credits from a peer's clearing account to the caller.

        Args:
            amount_credits: the amount; None: the whole balance.
        """

    route = listing_of("/v1/federation/route/{}", replies.RouteQuery, replies.RouteResult)
    trust_events = listing(
        "/v1/federation/trust-events", replies.TrustEventsQuery, replies.TrustPage
    )

    @sending("POST", "/v1/federation/subnets", replies.Subnet)
    def create_subnet(
        self,
        name: str,
        member_dids: Sequence[str] = (),
        *,
        policy_type: str = "private",
        description: str | None = None,
    ) -> None:
        """Create a subnet; the caller is its first member.

        Args:
            member_dids: DIDs to list; a listed DID is a member once it has joined.
            policy_type: private, invite_only or public.
        """

    subnet = reading("/v1/federation/subnets/{}", replies.Subnet)
    remove_subnet = removing("/v1/federation/subnets/{}", replies.Removed)
    subnets = listing("/v1/federation/subnets", replies.SubnetsQuery, replies.SubnetPage)

    @sending("POST", "/v1/federation/subnets/{subnet_id}/members", replies.MemberChanged)
    def add_subnet_member(self, subnet_id: str, member_did: str) -> None:
        """List a DID in a subnet of the caller, or join a subnet as the caller or its agent."""

    @operation(replies.MemberChanged)
    def remove_subnet_member(self, subnet_id: str, member_did: str) -> Steps:
        """Remove a DID from a subnet of the caller, or leave a subnet."""
        path = f"/v1/federation/subnets/{segment(subnet_id)}/members"
        query = {"memberDid": member_did}
        done = {"success": True, "subnetId": subnet_id, **query, "isJoined": False}
        return single(Call("DELETE", path, query=query, done=done))

    @sending("POST", "/v1/federation/policies", replies.SubnetPolicy)
    def create_policy(
        self,
        subnet_id: str,
        policy_type: str,
        *,
        capability: str | None = None,
        region: str | None = None,
        limit_per_minute: int | None = None,
    ) -> None:
        """Add a policy to a subnet of the caller.

        Args:
            policy_type: allow_capability, deny_capability, require_approval, rate_limit,
                allow_region or deny_region.
            capability: the id of a capability, or a prefix with `*`.
        """

    policies = listing("/v1/federation/policies", replies.PoliciesQuery, replies.PolicyPage)
    remove_policy = removing("/v1/federation/policies/{}", replies.Removed)
    iterate_audit = Iteration(audit)


class MoneyOperations:
    """Operations on accounts, prices, stakes, quotas, invoices, disputes, results and receipts."""

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
            amount_credits: credits, with at most 6 decimals; a text is exact, a float may not be.
            owner_did: the owner of the account, the caller by default.
            idempotency_key: the key to use instead of a new one.
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
        """Register a capability's price, per node or per token; for administrators.

        Args:
            price_cents: whole cents per node.
            input_rate, output_rate: credits per input and per output token. They replace
                `price_cents`; give both.
        """
        body: Json = {} if price_cents is None else {"price_cents": price_cents}
        if input_rate is not None or output_rate is not None:
            rates = {"inputRate": input_rate, "outputRate": output_rate}
            body["pricing"] = {"model": "per-token", **rates}
        return single(Call("PUT", f"/v1/capabilities/{segment(capability_id)}/price", body=body))

    stake = reading("/v1/stakes/{}", replies.Stake)

    @sending("POST", "/v1/stakes", replies.StakeMoved, amount_credits="amount")
    def deposit_stake(self, amount_credits: Credits, *, agent_did: str | None = None) -> None:
        """Deposit credits as stake of an agent, the caller by default."""

    @sending("POST", "/v1/stakes/unstake", replies.StakeMoved, amount_credits="amount")
    def withdraw_stake(self, amount_credits: Credits, *, agent_did: str | None = None) -> None:
        """Withdraw stake that is not locked."""

    @sending("POST", "/v1/agents/{agent_did}/collect", replies.Collected, amount_credits="amount")
    def collect(self, agent_did: str, *, amount_credits: Credits | None = None) -> None:
        """Move free credits from an agent's wallet to the wallet of its owner.

        Args:
            amount_credits: the amount; None: all free credits.
        """

    @sending("POST", "/v1/stakes/slash", replies.StakeSlashed)
    def slash_stake(self, agent_did: str, workflow_id: str, node_id: str, reason: str) -> None:
        """Give the stake that an agent has locked for a node to the node's payer.

        For administrators.
        """

    reputation = reading("/v1/reputation/{}", replies.Reputation)

    @sending("POST", "/v1/reputation/rebuild", replies.ReputationCompared)
    def rebuild_reputation(self, *, check: bool = False) -> None:
        """Compare the stored counts of every agent with history, and correct the counts.

        Args:
            check: only compare; correct nothing.
        """

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
        """Limit what a payer may publish; None means no limit. For administrators."""
        body = {
            "maxWorkflowsPerDay": workflows_per_day,
            "maxConcurrentWorkflows": concurrent_workflows,
            "maxSpendPerDayCents": spend_per_day_cents,
        }
        return single(Call("POST", f"/v1/quotas/{segment(did)}", body=body, headers=keyed(None)))

    @sending("POST", "/v1/quotas/{did}/check", replies.QuotaCheck)
    def check_quota(self, did: str, *, estimated_spend_cents: int | None = None) -> None:
        """Check whether a payer may publish now. Reference: money.md (Quotas)."""

    @sending("POST", "/v1/invoices", replies.InvoiceChanged)
    def create_invoice(
        self,
        *,
        payer_did: str | None = None,
        period_start: str | None = None,
        period_end: str | None = None,
        workflow_id: str | None = None,
    ) -> None:
        """Issue an invoice for a period (two ISO 8601 times) or for a workflow.

        Reference: money.md (Invoices).
        """

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
        """Open a dispute about the work or the payment of a workflow.

        Reference: money.md (Disputes and refunds).
        """

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
        """Resolve a dispute, with or without a refund to the payer; for administrators."""

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
        """Compare a result with the stored result of a node, and verify the agent's signature.

        Args:
            result, result_hash: the result to compare, or its hash; default: the stored result.
            public_key: the key to verify the signature with, base64.
        """

    receipt = reading("/v1/receipts/{}", replies.Receipt)
    receipts_of = listing_of("/v1/receipts/{}", PageQuery, replies.ReceiptPage)
    receipts_of_workflow = listing_of("/v1/receipts/workflow/{}", PageQuery, replies.ReceiptPage)

    @operation(replies.ReceiptSubmitted)
    def submit_receipt(self, receipt: Mapping[str, Any]) -> Steps:
        """Submit the caller's receipt of a node; for the node's agent, its owner and the payer.

        Args:
            receipt: a JSON object with `workflowId` and `nodeId`.
        """
        return single(Call("POST", "/v1/receipts", body=dict(receipt), headers=keyed(None)))

    @sending("POST", "/v1/receipts/verify", replies.ReceiptVerified)
    def verify_receipt(self, receipt: Mapping[str, Any]) -> None:
        """Verify that the deployment has signed a receipt."""

    iterate_transactions = Iteration(transactions)
    iterate_signed_results = Iteration(signed_results)
    iterate_receipts_of_workflow = Iteration(receipts_of_workflow)
    iterate_invoices = Iteration(invoices)
    iterate_disputes = Iteration(disputes)
