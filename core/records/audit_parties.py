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
# Who is a party of an event, by the resource in its name. Of a resource that is not here none is
# named: its actor and operators see it, or the plan names its parties (`Batch.add_parties`).
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
    "feedback": _AGENT,  # its plan names the payer
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
    # Whose live bids it lists may read the round as well (`GET /v1/auctions/{workflow_id}/{node}`).
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
