"""Peers: other Callboard deployments, their heartbeats, the routes to them and trust events.

Reference: features.md (Peers, Routing between regions).
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from core.records.api.identity import KeyText, SignatureText
from core.records.api.kinds import (
    CapabilityId,
    Count,
    Credits,
    CreditsSent,
    Did,
    LastEventId,
    Ratio,
    TimeMs,
    Timestamp,
    Yes,
    matching,
    text,
    whole,
    words,
)
from core.records.api.record import Page, PageQuery, Record
from core.records.api.shape import Body, Json, Kind, Maybe, MaybeNull, Mismatch, checked
from core.records.bounds import CARD_ENDPOINT_PATTERN, REGION_PATTERN, URL_CHARS_MAX
from core.records.statuses import PeerStatus, RoutingReason

TRUST_EVENTS: Final = ("agent.revoked", "agent.unrevoked", "agent.key_rotated", "agent.recovered")
# Capabilities of one heartbeat, and those that a peer may be limited to.
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


# `heartbeat` is a path beside those of the peers.
PeerId = Annotated[
    str,
    matching(
        "(?!heartbeat$)[a-z0-9][a-z0-9-]{0,62}",
        "1 to 63 lower-case letters, digits and dashes, not `heartbeat`",
    ),
]
# Not the DID of a clearing account: no key may sign as one.
DeploymentDid = Annotated[
    str,
    matching("did:callboard:[0-9a-f]{16}", "did:callboard: and 16 lower-case hexadecimal digits"),
]
Region = Annotated[
    str,
    matching(REGION_PATTERN[1:-1], "1 to 64 letters, digits, dots, dashes, underscores"),
]
BaseUrl = Annotated[str, Kind({**_BASE_URL.schema, "maxLength": URL_CHARS_MAX}, _base_url)]
Share = Annotated[
    float, checked({"type": "number", "minimum": 0, "maximum": 1}, _is_share, "a number 0 to 1")
]
CountSent = Annotated[int, whole(0, COUNT_MAX)]


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
    price_credits: Annotated[CreditsSent, "Price of a node."]
    latency_ms: Annotated[
        MaybeNull[int], whole(0, LATENCY_MS_MAX), "Average latency; null: not known."
    ] = None
    version: Annotated[MaybeNull[str], text(1, 64), "Version of the capability."] = None


class PeerHeartbeat(Body):
    """The state of a deployment, for a peer.

    A signed heartbeat needs `did`, `publicKey` and `at`. An operator may send a heartbeat without a
    signature on behalf of a peer. The peer's value of an absent member does not change.
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
    agent_count: Annotated[Maybe[CountSent], "Active agents."] = None
    workflow_count: Annotated[Maybe[CountSent], "Unfinished workflows."] = None
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


class PeerAdded(Peer):
    """A peer that was added."""

    success: Yes


class PeerRemoved(Record):
    """A peer that was removed."""

    success: Yes
    id: Annotated[str, "Id of the peer."]


class PeerPage(Page[Peer]):
    """Peers, ordered by id."""

    plural = "peers"
    row = Peer


class PeerHeartbeatTaken(Record):
    """A heartbeat that was stored."""

    success: Yes
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
    """A revocation, the end of one, or a new key of an agent."""

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
