"""Other deployments: peers, their money and trust events; subnets and their policies.

Reference: features.md (Peers, Routing between regions, Subnets and policies); money.md (Work of
peers).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from core.records.api.identity import KeyText, SignatureText
from core.records.api.kinds import (
    CapabilityId,
    Count,
    Credits,
    CreditsIn,
    Did,
    LastEventId,
    LongText,
    Ratio,
    Region,
    TimeMs,
    Timestamp,
    Uuid,
    matching,
    text,
    whole,
    words,
)
from core.records.api.record import Done, Page, PageQuery, Record
from core.records.api.shape import Body, Json, Kind, Maybe, MaybeNull, Mismatch, checked
from core.records.bounds import (
    CAPABILITY_ID_PATTERN,
    CARD_ENDPOINT_PATTERN,
    NAME_CHARS_MAX,
    URL_CHARS_MAX,
)
from core.records.statuses import PeerStatus, PolicyType, RoutingReason, SubnetType
from core.wording import got_of

TRUST_EVENTS: Final = ("agent.revoked", "agent.unrevoked", "agent.key_rotated", "agent.recovered")
# The most capabilities in one heartbeat, and in the list to which a peer may be limited.
OFFERS_MAX: Final = 500
COUNT_MAX: Final = 10**9
LATENCY_MS_MAX: Final = 30 * 24 * 3_600_000

_BASE_URL: Final = matching(CARD_ENDPOINT_PATTERN[1:-1], "an http or https URL without a query")


def _base_url(value: Any) -> str:
    if isinstance(value, str) and len(value) > URL_CHARS_MAX:
        raise Mismatch(f"{len(value)} characters", f"at most {URL_CHARS_MAX}")
    return str(_BASE_URL.read(value)).rstrip("/")


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


# `heartbeat` is excluded, because `/v1/federation/peers/heartbeat` is a path of its own.
PeerId = Annotated[
    str,
    matching(
        "(?!heartbeat$)[a-z0-9][a-z0-9-]{0,62}",
        "1 to 63 lower-case letters, digits and dashes, not `heartbeat`",
    ),
]
# The DIDs of clearing accounts are excluded, because no key may sign with such a DID.
DeploymentDid = Annotated[
    str,
    matching("did:callboard:[0-9a-f]{16}", "did:callboard: and 16 lower-case hexadecimal digits"),
]
BaseUrl = Annotated[str, Kind({**_BASE_URL.schema, "maxLength": URL_CHARS_MAX}, _base_url)]
Share = Annotated[
    float, checked({"type": "number", "minimum": 0, "maximum": 1}, _is_share, "a number 0 to 1")
]
CountIn = Annotated[int, whole(0, COUNT_MAX)]


class PeersQuery(PageQuery):
    """Which peers are listed."""

    region: Annotated[Maybe[Region], "Only peers of this region."] = None


class RouteQuery(Body):
    """The region that a route prefers."""

    request_region: Annotated[Maybe[Region], "The preferred region."] = None


class TrustEventsQuery(Body):
    """Which events are read."""

    after: Annotated[
        Maybe[LastEventId], "Only events of audit entries after this one. Default 0."
    ] = None


class PeerRequest(Body, is_closed=True):
    """A deployment to add as a peer."""

    peer_id: Annotated[Maybe[PeerId], "Id of the peer here. Default: the last part of its DID."] = (
        None
    )
    endpoint: Annotated[BaseUrl, "Base URL of its API."]
    region: Annotated[Region, "Region of the peer."]
    public_key: Annotated[KeyText, "Key that it signs with, base64 of 32 bytes."]
    did: Annotated[
        Maybe[DeploymentDid],
        "DID of the peer, as its `/.well-known/callboard.json` shows it. Needed if the peer has"
        " rotated its key. Default: derived from `publicKey`.",
    ] = None
    capabilities: Annotated[
        MaybeNull[list[CapabilityId]],
        "Capabilities that the peer may offer here. Default: all.",
    ] = None


class RotatedKey(Body):
    """A later key of a deployment."""

    public_key: Annotated[KeyText, "Public key, base64."]
    proof: Annotated[SignatureText, "Signature of the previous key over the rotation."]


class OfferSent(Body):
    """A capability that a deployment offers to its peers."""

    id: Annotated[CapabilityId, "Id of the capability."]
    price_credits: Annotated[CreditsIn, "Price of a node."]
    latency_ms: Annotated[
        MaybeNull[int], whole(0, LATENCY_MS_MAX), "Average latency; null: not known."
    ] = None
    version: Annotated[MaybeNull[str], text(1, 64), "Version of the capability."] = None


class PeerHeartbeat(Body):
    """The state of a deployment, for a peer.

    A signed heartbeat needs `did`, `publicKey` and `at`. An operator may send a heartbeat without a
    signature on behalf of a peer. An absent member does not change the stored value of the peer.
    """

    peer_id: Annotated[Maybe[PeerId], "Id of the peer at the receiver."] = None
    did: Annotated[Maybe[Did], "DID of the sender."] = None
    at: Annotated[Maybe[TimeMs], "Time of the heartbeat; at most 60 s from the receiver's."] = None
    public_key: Annotated[Maybe[KeyText], "Current key of the sender, base64."] = None
    rotations: Annotated[
        Maybe[list[RotatedKey]],
        "The last keys that the sender rotated to, the current key last; at most 20.",
    ] = None
    region: Annotated[Maybe[Region], "Region of the sender."] = None
    agent_count: Annotated[Maybe[CountIn], "Active agents."] = None
    workflow_count: Annotated[Maybe[CountIn], "Unfinished workflows."] = None
    load: Annotated[Maybe[Share], "Part of the capacity that is taken, 0 to 1."] = None
    capabilities: Annotated[
        Maybe[list[OfferSent]], f"Offered capabilities, at most {OFFERS_MAX}."
    ] = None
    signature: Annotated[
        Maybe[SignatureText],
        "Signature of `publicKey` over the canonical form of all other members: `ed25519:` and"
        " base64.",
    ] = None


class PeerOffered(Record):
    """A capability that a peer offers."""

    id: Annotated[str, "Id of the capability."]
    price_credits: Annotated[Credits, "Price of a node there."]
    latency_ms: Annotated[int | None, "Average latency in milliseconds; null: not known."]
    version: Annotated[str | None, "Version of the capability; null: not known."]


class Peer(Record):
    """Another deployment that takes work from this one."""

    id: Annotated[str, "Id of the peer."]
    did: Annotated[Did, "DID of the peer."]
    endpoint: Annotated[str, "Base URL of its API."]
    region: Annotated[str, "Region of the peer."]
    public_key: Annotated[str, "Its current key, base64."]
    clearing_did: Annotated[Did, "Account here that gets the payments for its work."]
    capabilities: Annotated[
        list[str] | None, "Capabilities that it may offer here; null: all of them."
    ]
    status: Annotated[
        str,
        words(PeerStatus),
        "By the age of the last heartbeat. `active`: at most 60 s; `stale`: at most 5 min;"
        " `unreachable`: older; `added`: it has sent none.",
    ]
    last_seen_at: Annotated[Timestamp | None, "Time of its last heartbeat; null: it has sent none."]
    proven_at: Annotated[
        Timestamp | None,
        "Time of the last heartbeat that its current key has signed; null: there is none, so the"
        " peer gets no work.",
    ]
    agent_count: Annotated[Count, "Its active agents, by its own heartbeat."]
    workflow_count: Annotated[Count, "Its unfinished workflows, by its own heartbeat."]
    load: Annotated[Ratio, "Part of its capacity that is taken, by its own heartbeat."]
    offer_count: Annotated[Count, "Number of capabilities that it offers here."]
    offers: Annotated[list[PeerOffered], "Capabilities that it offers here."]
    added_by_did: Annotated[Did, "DID of the operator who added it."]
    created_at: Timestamp


class PeerAdded(Peer, Done):
    """A peer that was added."""


class PeerPage(Page[Peer], plural="peers"):
    """Peers, ordered by id."""


class PeerHeartbeatTaken(Done):
    """A heartbeat that was stored."""

    id: Annotated[str, "Id of the peer here."]
    heartbeat: Annotated[
        Maybe[Json],
        "The signed heartbeat of this deployment. Absent if the one in the request is not signed.",
    ]


class RoutedPeer(Record):
    """The peer of a route."""

    id: Annotated[str, "Id of the peer."]
    endpoint: Annotated[str, "Base URL of its API."]
    region: Annotated[str, "Region of the peer."]
    workflow_count: Annotated[Count, "Its unfinished workflows, by its own heartbeat."]


class RouteResult(Record):
    """The peer that gets work of a capability first."""

    peer: Annotated[RoutedPeer, "The peer."]
    routing_reason: Annotated[str, words(RoutingReason), "Why this peer was chosen."]
    price_credits: Annotated[Credits, "Price of a node there."]
    latency_ms: Annotated[int | None, "Average latency in milliseconds; null: not known."]


class TrustEvent(Record):
    """The revocation of an agent, the end of a revocation, or a new key of an agent."""

    id: Annotated[int, "Id of the audit entry."]
    type: Annotated[str, words(TRUST_EVENTS), "Type of the event."]
    did: Did
    expires_at: Annotated[Maybe[Timestamp], "End of the revocation. Absent: for good."]
    public_key: Annotated[Maybe[str], "The new key, base64."]


class TrustPage(Record):
    """Revocations and new keys of agents, signed by this deployment."""

    did: Annotated[Did, "DID of this deployment."]
    after: Annotated[int, "The page begins after this audit entry."]
    to: Annotated[int, "The page has all events up to this audit entry."]
    events: Annotated[list[TrustEvent], "The events, oldest first."]
    signature: Annotated[str, "Signature over the canonical form of all other members."]


class TrustEventRead(Body):
    """An event of a trust page, as a peer sent it."""

    id: Annotated[int, whole(1, 2**53)]
    type: Annotated[str, words(TRUST_EVENTS)]
    did: Did
    expires_at: Annotated[Maybe[TimeMs], "End of the revocation."] = None
    public_key: Annotated[Maybe[KeyText], "The new key."] = None


class TrustPageRead(Body):
    """A trust page, as a peer sent it."""

    did: Did
    after: Annotated[int, whole(0, 2**53)]
    to: Annotated[int, whole(0, 2**53)]
    events: list[TrustEventRead]


Month = Annotated[str, matching("20[0-9]{2}-(0[1-9]|1[0-2])", "a month such as 2026-11")]
# The most differences that a check lists.
DIFFERENCES_MAX: Final = 100


class StatementQuery(PageQuery):
    """The month of a statement."""

    month: Annotated[Maybe[Month], "Month in UTC, such as 2026-11. Default: the current one."] = (
        None
    )


class CheckQuery(Body):
    """The period of a check."""

    month: Annotated[Maybe[Month], "Month in UTC, such as 2026-11. Default: the current one."] = (
        None
    )
    start_time: Annotated[
        Maybe[TimeMs], "Start of the period, included. Needs `endTime`, and no `month`."
    ] = None
    end_time: Annotated[Maybe[TimeMs], "End of the period, excluded."] = None


class PeerOrder(Record):
    """An attempt of a node that ran at a peer."""

    order_id: Annotated[str, "Id of the order: the `eventId` of the attempt."]
    workflow_id: Annotated[Uuid, "Id of the workflow here."]
    node_id: Annotated[str, "Name of the node."]
    attempt: Annotated[Count, "Number of the attempt."]
    outcome: Annotated[str, "`success`, `error`, `timeout`, `lost` or `discarded`."]
    completed_at: Timestamp
    paid_credits: Annotated[Credits, "What the payer paid, protocol fee included."]
    received_credits: Annotated[Credits, "What the clearing account received."]
    peer_workflow_id: Annotated[Maybe[str], "Id of the order's workflow at the peer."]


class Statement(Page[PeerOrder], plural="orders"):
    """The orders at a peer that ended in a month, newest first, and the sums of all of them."""

    peer_id: Annotated[str, "Id of the peer."]
    month: Annotated[str, "The month, in UTC."]
    order_count: Annotated[Count, "Number of orders of the month."]
    paid_credits: Annotated[Credits, "What payers paid in the month, protocol fee included."]
    received_credits: Annotated[Credits, "What the clearing account received in the month."]


class PeerBalance(Record):
    """The balance of a peer's clearing account, and this deployment's balance at the peer."""

    peer_id: Annotated[str, "Id of the peer."]
    clearing_did: Annotated[Did, "DID of the clearing account here."]
    clearing_credits: Annotated[Credits, "Credits in the clearing account."]
    own_did: Annotated[Did, "DID of this deployment, which pays for orders at the peer."]
    own_credits: Annotated[
        Credits | None,
        "Free credits of this deployment at the peer; null: the peer gave no answer.",
    ]
    own_pending: Annotated[
        Credits | None, "Credits that its unfinished orders hold there; null: as `ownCredits`."
    ]


class OrderDifference(Record):
    """An order whose charge at the peer is not what the clearing account received."""

    order_id: Annotated[str, "Id of the order."]
    peer_workflow_id: Annotated[MaybeNull[str], "Id of its workflow at the peer; null: none."]
    outcome: Annotated[MaybeNull[str], "Outcome of the attempt here; null: there is none."]
    charged_credits: Annotated[Credits, "What the peer charged."]
    received_credits: Annotated[Credits, "What the clearing account received."]


class PeerCheck(Record):
    """The books of a period, compared order by order."""

    peer_id: Annotated[str, "Id of the peer."]
    start_time: Annotated[Timestamp, "Start of the period."]
    end_time: Annotated[Timestamp, "End of the period, excluded."]
    agrees: Annotated[bool, "Whether there are no differences."]
    order_count: Annotated[Count, "Orders that ended on both sides."]
    open_orders: Annotated[
        Count, "Orders that have not ended on one side yet. They are not compared."
    ]
    charged_credits: Annotated[Credits, "What the peer charged for them."]
    received_credits: Annotated[Credits, "What the clearing account received for them."]
    lost_credits: Annotated[
        Credits, "Charged for attempts that did not succeed here, beyond what was paid for them."
    ]
    differences: Annotated[
        list[OrderDifference],
        f"Orders whose charge there is not what was received here, at most {DIFFERENCES_MAX}."
        " `lostCredits` are no difference.",
    ]


class Settled(Done):
    """A transfer out of a clearing account."""

    id: Annotated[int, "Number of the entry."]
    clearing_did: Annotated[Did, "DID of the clearing account."]
    owner_did: Annotated[Did, "DID of the wallet that received it."]
    amount: Annotated[Credits, "Amount that was moved."]
    balance: Annotated[Credits, "Balance of the clearing account."]
    owner_balance: Annotated[Credits, "Balance of the wallet that received it."]


# The most members of a subnet: listed or joined, the owner included.
MEMBERS_MAX: Final = 200
LIMIT_MAX: Final = 10**9
_CAPABILITY: Final = re.compile(CAPABILITY_ID_PATTERN)


def _capability(value: Any) -> str:
    if isinstance(value, str) and (value == "*" or _CAPABILITY.fullmatch(value.removesuffix("*"))):
        return value
    raise Mismatch(got_of(value), "a capability's id, a prefix of ids and *, or *")


CapabilityPattern = Annotated[str, Kind({"type": "string", "maxLength": 129}, _capability)]


class SubnetRequest(Body, is_closed=True):
    """A new subnet."""

    name: Annotated[str, text(1, NAME_CHARS_MAX), "Name of the subnet."]
    member_dids: Annotated[
        Maybe[list[Did]], "DIDs to list; each is a member once it has joined. At most 199."
    ] = None
    policy_type: Annotated[
        str,
        words(SubnetType),
        "`private`: others cannot see it or its agents. `public`: everyone may join.",
    ]
    description: Annotated[MaybeNull[LongText], "What the subnet is for."] = None


class Subnet(Record):
    """A subnet."""

    id: Annotated[Uuid, "Id of the subnet."]
    subnet_id: Annotated[Uuid, "Id of the subnet."]
    name: Annotated[str, "Name of the subnet."]
    description: Annotated[str, "What the subnet is for."]
    policy_type: Annotated[str, words(SubnetType), "Who may see and join it."]
    owner_did: Annotated[Did, "DID of its creator, who lists members and sets policies."]
    member_dids: Annotated[list[Did], "DIDs that are listed or have joined."]
    joined_dids: Annotated[list[Did], "DIDs that have joined: its policies bind them."]
    created_at: Timestamp


class SubnetPage(Page[Subnet], plural="subnets"):
    """A page of subnets, oldest first."""


class SubnetsQuery(PageQuery):
    """Filters of the list of subnets. A page has at most 20 subnets."""

    member_did: Annotated[Maybe[Did], "Only subnets that list this DID."] = None


class MemberRequest(Body, is_closed=True):
    """A DID that is listed in a subnet, or joins it."""

    member_did: Annotated[Did, "DID of the member."]


class MemberQuery(Body):
    """The member to remove."""

    member_did: Annotated[Did, "DID of the member."]


class MemberChanged(Done):
    """A member that was listed, has joined or was removed."""

    subnet_id: Annotated[Uuid, "Id of the subnet."]
    member_did: Annotated[Did, "DID of the member."]
    is_joined: Annotated[bool, "Whether the DID is a member, and not only listed."]


class PolicyRequest(Body, is_closed=True):
    """A new policy of a subnet."""

    subnet_id: Annotated[Uuid, "Id of the subnet."]
    policy_type: Annotated[str, words(PolicyType), "What the policy does."]
    capability: Annotated[
        Maybe[CapabilityPattern],
        "Capability id, or a prefix and `*`. `allow_capability` and `deny_capability` need it;"
        " default of `require_approval` and `rate_limit`: all.",
    ] = None
    region: Annotated[Maybe[Region], "Region of `allow_region` and `deny_region`."] = None
    limit_per_minute: Annotated[
        Maybe[int],
        whole(0, LIMIT_MAX),
        "Nodes that each member may publish in a minute under `rate_limit`.",
    ] = None


class SubnetPolicy(Record):
    """A policy of a subnet."""

    id: Annotated[Uuid, "Id of the policy."]
    subnet_id: Annotated[Uuid, "Id of the subnet."]
    policy_type: Annotated[str, words(PolicyType), "What the policy does."]
    capability: Annotated[str | None, "Capability id, or a prefix and `*`; null: all."]
    region: Annotated[str | None, "Region of the region policies, else null."]
    limit_per_minute: Annotated[int | None, "Limit of `rate_limit`, else null."]
    created_at: Timestamp


class PolicyPage(Page[SubnetPolicy], plural="policies"):
    """A page of policies, oldest first."""


class PoliciesQuery(PageQuery):
    """Filters of the list of policies."""

    subnet_id: Annotated[Maybe[Uuid], "Only policies of this subnet."] = None
