"""Who is a party of an audit entry: a rule for each event type.

An entry's actor is always a party of it. A rule says where in one of its events others are named,
and as what: a DID, an agent, whose owner of that time is a party as well, or a workflow. An entry
is shown whole to each of its parties. The writer applies the rules as it writes an entry. Decision
audit-chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final, NamedTuple

from core.records.audit import AuditEventType


class Named(StrEnum):
    """As what an event names a party."""

    DID = "did"
    AGENT = "agent"
    WORKFLOW = "workflow"
    """A workflow's id: its payer."""


class PartyRule(NamedTuple):
    """Where events of a type name parties.

    Attributes:
        named: as what.
        path: members of the payload, one within the other; of a list each item is looked at, and
            texts alone count. Empty: the target's id.
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
# What concerns the deployment: its actor and operators see it.
_OPERATORS: Final[tuple[PartyRule, ...]] = ()
# Who is a party of these the entry does not say: their plans do (`Batch.add_parties`).
_PLANNED: Final[tuple[PartyRule, ...]] = ()

PARTY_RULES: Final[dict[AuditEventType, tuple[PartyRule, ...]]] = {
    AuditEventType.LEDGER_CREATED: _OPERATORS,
    AuditEventType.LEDGER_DEPOSITED: (PartyRule(Named.DID),),
    AuditEventType.LEDGER_COLLECTED: (*_OF_AGENT, *_OWNED),
    AuditEventType.WORKFLOW_PUBLISHED: _in(Named.DID, "payerDid"),
    AuditEventType.WORKFLOW_STARTED: _WORKFLOW,
    AuditEventType.WORKFLOW_FINISHED: _WORKFLOW,
    AuditEventType.WORKFLOW_SETTLED: _WORKFLOW,
    AuditEventType.WORKFLOW_CANCELLED: _WORKFLOW,
    AuditEventType.WORKFLOW_QUARANTINED: _WORKFLOW,
    AuditEventType.WORKFLOW_RESUMED: _WORKFLOW,
    AuditEventType.NODE_SUCCEEDED: (*_WORKFLOW, *_OF_AGENT),
    AuditEventType.NODE_FAILED: (*_WORKFLOW, *_OF_AGENT),
    AuditEventType.NODE_TIMED_OUT: (*_WORKFLOW, *_OF_AGENT),
    AuditEventType.NODE_SKIPPED: _WORKFLOW,
    AuditEventType.ESCROW_HELD: _WORKFLOW,
    AuditEventType.ESCROW_RELEASED: _WORKFLOW,
    AuditEventType.PAYMENT_SETTLED: (*_WORKFLOW, *_OF_AGENT),
    AuditEventType.AGENT_REGISTERED: (*_AGENT, *_in(Named.DID, "yieldedBy")),
    AuditEventType.AGENT_DEREGISTERED: _AGENT,
    AuditEventType.AGENT_REVOKED: _AGENT,
    AuditEventType.AGENT_UNREVOKED: _AGENT,
    AuditEventType.AGENT_KEY_ROTATED: _AGENT,
    AuditEventType.AGENT_INHERITED: (*_AGENT, *_in(Named.DID, "formerOwnerDid", "ownerDid")),
    AuditEventType.AGENT_RECOVERED: _AGENT,
    AuditEventType.INHERITANCE_SET: _HEIR,
    AuditEventType.INHERITANCE_CANCELLED: _HEIR,
    AuditEventType.GUARDIANS_SET: (*_AGENT, *_in(Named.DID, "guardians", "custodianDid")),
    AuditEventType.RECOVERY_REQUESTED: (*_AGENT, *_in(Named.DID, "signers")),
    AuditEventType.RECOVERY_CANCELLED: _AGENT,
    AuditEventType.NAME_REGISTERED: _NAME,
    AuditEventType.NAME_RENEWED: _NAME,
    AuditEventType.NAME_OFFERED: _NAME,
    AuditEventType.NAME_TRANSFERRED: _NAME,
    AuditEventType.NAME_RELEASED: _NAME,
    AuditEventType.KEY_CREATED: _OWNED,
    AuditEventType.KEY_REVOKED: _OWNED,
    AuditEventType.KEY_ROTATED: _OWNED,
    AuditEventType.RIGHT_USED: _OPERATORS,
    AuditEventType.SIGNING_KEY_ROTATED: _OPERATORS,
    AuditEventType.RECEIPT_SUBMITTED: (*_in(Named.WORKFLOW, "workflowId"), *_OF_AGENT),
    AuditEventType.REPUTATION_REBUILT: _OPERATORS,
    AuditEventType.CAPABILITY_PRICED: _OPERATORS,
    AuditEventType.VERSION_PUBLISHED: _in(Named.DID, "ownerDid", "formerOwnerDid"),
    AuditEventType.VERSION_DEPRECATED: _OWNED,
    AuditEventType.INVOICE_ISSUED: _in(Named.DID, "payerDid"),
    AuditEventType.INVOICE_PAID: _PLANNED,
    AuditEventType.INVOICE_VOIDED: _PLANNED,
    AuditEventType.DISPUTE_OPENED: _PLANNED,
    AuditEventType.DISPUTE_RESOLVED: _PLANNED,
    # The plan names its payer.
    AuditEventType.FEEDBACK_GIVEN: _AGENT,
    AuditEventType.AUCTION_OPENED: _WORKFLOW,
    # Whose live bids it lists may read the round as well (`GET /v1/auctions/{workflow_id}/{node}`).
    AuditEventType.AUCTION_CLOSED: (
        *_WORKFLOW,
        *_in(Named.AGENT, "winnerDid", "bids.agentDid"),
    ),
    AuditEventType.BID_PLACED: (*_WORKFLOW, *_OF_AGENT),
    AuditEventType.STAKE_LOCKED: _STAKED,
    AuditEventType.STAKE_UNLOCKED: _STAKED,
    AuditEventType.STAKE_SLASHED: (*_STAKED, *_in(Named.DID, "payerDid")),
    AuditEventType.QUOTA_SET: (PartyRule(Named.DID),),
    AuditEventType.TRIGGER_CREATED: _OWNED,
    AuditEventType.TRIGGER_CHANGED: _OWNED,
    AuditEventType.TRIGGER_PAUSED: _OWNED,
    AuditEventType.TRIGGER_RESUMED: _OWNED,
    AuditEventType.TRIGGER_ENDED: _OWNED,
    AuditEventType.TRIGGER_RUN_REFUSED: _OWNED,
    AuditEventType.PEER_ADDED: _OPERATORS,
    AuditEventType.PEER_REMOVED: _OPERATORS,
    AuditEventType.PEER_KEY_ROTATED: _OPERATORS,
    AuditEventType.SUBNET_CREATED: _OWNED,
    AuditEventType.SUBNET_REMOVED: _OWNED,
    AuditEventType.SUBNET_MEMBER_ADDED: (*_OWNED, *_in(Named.AGENT, "memberDid")),
    AuditEventType.SUBNET_MEMBER_REMOVED: (*_OWNED, *_in(Named.AGENT, "memberDid")),
    AuditEventType.SUBNET_POLICY_CREATED: _OWNED,
    AuditEventType.SUBNET_POLICY_REMOVED: _OWNED,
    AuditEventType.STAKE_DEPOSITED: _PUT_IN,
    AuditEventType.STAKE_WITHDRAWN: _PUT_IN,
    AuditEventType.MEMBER_JOINED: _OPERATORS,
    AuditEventType.MEMBER_CHANGED: _OPERATORS,
    AuditEventType.SHARDS_TAKEN: _OPERATORS,
    AuditEventType.SHARDS_GIVEN: _OPERATORS,
    AuditEventType.COMMAND_REFUSED: _OPERATORS,
}


def named_in(
    event: AuditEventType, target_id: str, payload: dict[str, Any]
) -> Iterator[tuple[Named, str]]:
    """Yield whom an event names, and as what; some perhaps twice."""
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
