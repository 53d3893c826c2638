"""The closed list of event types; the chain of audit entries is also the event stream.

What a type is about (`targetType`) and the verb in it (`action`) follow from its name,
`resource.past_participle`. Reference: money.md (Audit chain).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class AuditEventType(StrEnum):
    """Everything that can be found in the audit chain. Closed: a new event is a new member here."""

    LEDGER_CREATED = "ledger.created"
    LEDGER_DEPOSITED = "ledger.deposited"
    LEDGER_COLLECTED = "ledger.collected"
    WORKFLOW_PUBLISHED = "workflow.published"
    WORKFLOW_STARTED = "workflow.started"
    WORKFLOW_FINISHED = "workflow.finished"
    WORKFLOW_SETTLED = "workflow.settled"
    WORKFLOW_CANCELLED = "workflow.cancelled"
    WORKFLOW_QUARANTINED = "workflow.quarantined"
    WORKFLOW_RESUMED = "workflow.resumed"
    NODE_SUCCEEDED = "node.succeeded"
    NODE_FAILED = "node.failed"
    NODE_TIMED_OUT = "node.timed_out"
    NODE_SKIPPED = "node.skipped"
    ESCROW_HELD = "escrow.held"
    ESCROW_RELEASED = "escrow.released"
    PAYMENT_SETTLED = "payment.settled"
    AGENT_REGISTERED = "agent.registered"
    AGENT_DEREGISTERED = "agent.deregistered"
    AGENT_REVOKED = "agent.revoked"
    AGENT_UNREVOKED = "agent.unrevoked"
    AGENT_KEY_ROTATED = "agent.key_rotated"
    AGENT_INHERITED = "agent.inherited"
    AGENT_RECOVERED = "agent.recovered"
    INHERITANCE_SET = "inheritance.set"
    INHERITANCE_CANCELLED = "inheritance.cancelled"
    GUARDIANS_SET = "guardians.set"
    RECOVERY_REQUESTED = "recovery.requested"
    RECOVERY_CANCELLED = "recovery.cancelled"
    NAME_REGISTERED = "name.registered"
    NAME_RENEWED = "name.renewed"
    NAME_OFFERED = "name.offered"
    NAME_TRANSFERRED = "name.transferred"
    NAME_RELEASED = "name.released"
    KEY_CREATED = "key.created"
    KEY_REVOKED = "key.revoked"
    KEY_ROTATED = "key.rotated"
    RIGHT_USED = "right.used"
    SIGNING_KEY_ROTATED = "signing_key.rotated"
    RECEIPT_SUBMITTED = "receipt.submitted"
    REPUTATION_REBUILT = "reputation.rebuilt"
    CAPABILITY_PRICED = "capability.priced"
    VERSION_PUBLISHED = "capability_version.published"
    VERSION_DEPRECATED = "capability_version.deprecated"
    INVOICE_ISSUED = "invoice.issued"
    INVOICE_PAID = "invoice.paid"
    INVOICE_VOIDED = "invoice.voided"
    DISPUTE_OPENED = "dispute.opened"
    DISPUTE_RESOLVED = "dispute.resolved"
    FEEDBACK_GIVEN = "feedback.given"
    AUCTION_OPENED = "auction.opened"
    AUCTION_CLOSED = "auction.closed"
    BID_PLACED = "bid.placed"
    STAKE_LOCKED = "stake.locked"
    STAKE_UNLOCKED = "stake.unlocked"
    STAKE_SLASHED = "stake.slashed"
    QUOTA_SET = "quota.set"
    TRIGGER_CREATED = "trigger.created"
    TRIGGER_CHANGED = "trigger.changed"
    TRIGGER_PAUSED = "trigger.paused"
    TRIGGER_RESUMED = "trigger.resumed"
    TRIGGER_ENDED = "trigger.ended"
    TRIGGER_RUN_REFUSED = "trigger.run_refused"
    PEER_ADDED = "peer.added"
    PEER_REMOVED = "peer.removed"
    PEER_KEY_ROTATED = "peer.key_rotated"
    SUBNET_CREATED = "subnet.created"
    SUBNET_REMOVED = "subnet.removed"
    SUBNET_MEMBER_ADDED = "subnet.member_added"
    SUBNET_MEMBER_REMOVED = "subnet.member_removed"
    SUBNET_POLICY_CREATED = "subnet.policy_created"
    SUBNET_POLICY_REMOVED = "subnet.policy_removed"
    STAKE_DEPOSITED = "stake.deposited"
    STAKE_WITHDRAWN = "stake.withdrawn"
    MEMBER_JOINED = "member.joined"
    MEMBER_CHANGED = "member.changed"
    SHARDS_TAKEN = "shards.taken"
    SHARDS_GIVEN = "shards.given"
    COMMAND_REFUSED = "command.refused"

    @property
    def action(self) -> str:
        """The verb: what was done ("settled")."""
        return self.value.partition(".")[2]


# Entries with these events name the signing keys. Every reader of the log sees them whole, so that
# everyone can check signatures.
PUBLIC_EVENTS: Final = frozenset(
    {AuditEventType.LEDGER_CREATED, AuditEventType.SIGNING_KEY_ROTATED}
)
# What every workflow goes through, always about the workflow itself: entries that have them are
# found by their workflow. Each other event is found by its type and by its target.
LIFE_EVENTS: Final = frozenset(
    {
        AuditEventType.WORKFLOW_PUBLISHED,
        AuditEventType.WORKFLOW_STARTED,
        AuditEventType.WORKFLOW_FINISHED,
        AuditEventType.NODE_SUCCEEDED,
        AuditEventType.ESCROW_HELD,
        AuditEventType.ESCROW_RELEASED,
        AuditEventType.PAYMENT_SETTLED,
    }
)
