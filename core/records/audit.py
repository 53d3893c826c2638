"""The closed list of audit event types, and the rules that find the parties of an event.

The event stream is the audit chain. The name of a type is `resource.past_participle`; its second
part is the `action` of an entry. Reference: money.md (Audit chain).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final, NamedTuple


class AuditEventType(StrEnum):
    """The types of all events in the audit chain."""

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
        """The verb of the type, such as "settled"."""
        return self.value.partition(".")[2]


# Entries with these events contain the signing keys. Every reader of the log sees these entries
# completely, so that everyone can check signatures.
PUBLIC_EVENTS: Final = frozenset(
    {AuditEventType.LEDGER_CREATED, AuditEventType.SIGNING_KEY_ROTATED}
)
# Events that every ordinary workflow has, always with the workflow as the target. Their entries are
# indexed by workflow only. Entries of all other events are indexed by type and by target.
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


class Named(StrEnum):
    """The kind of the id by which an event names a party."""

    DID = "did"
    AGENT = "agent"
    WORKFLOW = "workflow"
    """A workflow's id: its payer."""


class PartyRule(NamedTuple):
    """A rule that says where the events of a type name a party.

    Attributes:
        named: the kind of the id.
        path: the path of the id in the payload. Each item of a list on the path is searched, and
            only texts count. Empty: the party is the target of the event.
    """

    named: Named
    path: tuple[str, ...] = ()


def _in(named: Named, *paths: str) -> tuple[PartyRule, ...]:
    return tuple(PartyRule(named, tuple(path.split("."))) for path in paths)


_WORKFLOW: Final = (PartyRule(Named.WORKFLOW),)
_AGENT: Final = (PartyRule(Named.AGENT),)
_OF_AGENT: Final = _in(Named.AGENT, "agentDid")
_OWNED: Final = _in(Named.DID, "ownerDid")
_NAME: Final = (*_OWNED, *_in(Named.AGENT, "agentDid", "offeredTo"))
_STAKED: Final = (*_AGENT, *_in(Named.WORKFLOW, "workflowId", "evidence.workflowId"))
_PUT_IN: Final = (*_AGENT, *_in(Named.DID, "walletDid"))
_HEIR: Final = (*_AGENT, *_in(Named.DID, "inheritsToDid"))
# The rules by the resource in the name of the event. Events of other resources name no party: only
# their actor and operators see them, unless the plan adds parties (`Batch.add_parties`).
_BY_RESOURCE: Final[dict[str, tuple[PartyRule, ...]]] = {
    "workflow": _WORKFLOW,
    "node": (*_WORKFLOW, *_OF_AGENT),
    "escrow": _WORKFLOW,
    "payment": (*_WORKFLOW, *_OF_AGENT),
    "agent": _AGENT,
    "inheritance": _HEIR,
    "recovery": _AGENT,
    "name": _NAME,
    "key": _OWNED,
    "feedback": _AGENT,  # the plan of the command adds the payer
    "auction": _WORKFLOW,
    "stake": _STAKED,
    "quota": (PartyRule(Named.DID),),
    "trigger": _OWNED,
    "subnet": _OWNED,
    "capability_version": _OWNED,
}
_MEMBER: Final = (*_OWNED, *_in(Named.AGENT, "memberDid"))
_OF_EVENTS: Final[dict[AuditEventType, tuple[PartyRule, ...]]] = {
    AuditEventType.LEDGER_DEPOSITED: (PartyRule(Named.DID),),
    AuditEventType.LEDGER_COLLECTED: (*_OF_AGENT, *_OWNED),
    AuditEventType.WORKFLOW_PUBLISHED: _in(Named.DID, "payerDid"),
    AuditEventType.NODE_SKIPPED: _WORKFLOW,
    AuditEventType.AGENT_REGISTERED: (*_AGENT, *_in(Named.DID, "yieldedBy")),
    AuditEventType.AGENT_INHERITED: (*_AGENT, *_in(Named.DID, "formerOwnerDid", "ownerDid")),
    AuditEventType.GUARDIANS_SET: (*_AGENT, *_in(Named.DID, "guardians", "custodianDid")),
    AuditEventType.RECOVERY_REQUESTED: (*_AGENT, *_in(Named.DID, "signers")),
    AuditEventType.RECEIPT_SUBMITTED: (*_in(Named.WORKFLOW, "workflowId"), *_OF_AGENT),
    AuditEventType.VERSION_PUBLISHED: _in(Named.DID, "ownerDid", "formerOwnerDid"),
    AuditEventType.INVOICE_ISSUED: _in(Named.DID, "payerDid"),
    # Agents with a live bid in the round are parties, because they may read the round as well
    # (`GET /v1/auctions/{workflow_id}/{node}`).
    AuditEventType.AUCTION_CLOSED: (
        *_WORKFLOW,
        *_in(Named.AGENT, "winnerDid", "bids.agentDid"),
    ),
    AuditEventType.BID_PLACED: (*_WORKFLOW, *_OF_AGENT),
    AuditEventType.STAKE_SLASHED: (*_STAKED, *_in(Named.DID, "payerDid")),
    AuditEventType.SUBNET_MEMBER_ADDED: _MEMBER,
    AuditEventType.SUBNET_MEMBER_REMOVED: _MEMBER,
    AuditEventType.STAKE_DEPOSITED: _PUT_IN,
    AuditEventType.STAKE_WITHDRAWN: _PUT_IN,
}
PARTY_RULES: Final[dict[AuditEventType, tuple[PartyRule, ...]]] = {
    event: _OF_EVENTS.get(event, _BY_RESOURCE.get(event.value.partition(".")[0], ()))
    for event in AuditEventType
}


def named_in(
    event: AuditEventType, target_id: str, payload: dict[str, Any]
) -> Iterator[tuple[Named, str]]:
    """Yield the parties that an event names: kind and id, possibly with duplicates."""
    for named, path in PARTY_RULES[event]:
        value = payload.get(path[0]) if path else target_id
        if isinstance(value, str):
            yield named, value
        elif value is not None:
            for text in _texts(value, path[1:]):
                yield named, text


def _texts(value: Any, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _texts(item, path)
    elif path:
        yield from _texts(value.get(path[0]), path[1:])
    elif isinstance(value, str):
        yield value
