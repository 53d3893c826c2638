"""Returns the peers that may get a node of a capability, in the order in which they are tried.

Pure. Reference: features.md (Routing between regions).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import field

from core.message import Message
from core.records.statuses import PeerStatus, RoutingReason

# Up to this age of its last heartbeat, a peer is active. After that it is stale, and after
# `ROUTABLE_MS` it is unreachable and gets no work.
FRESH_MS: Final = 60_000
ROUTABLE_MS: Final = 300_000
# A node with less time for an attempt is not sent to a peer. An order must end at the peer at least
# 1 s before its attempt ends here. If it ended later, the order could be paid there although the
# attempt has timed out here and is not paid.
ORDER_TIMEOUT_MS_MIN: Final = 3_000


class PeerOffer(Message, frozen=True):
    """A peer's offer of one capability: the price of a node, the latency and the version."""

    price_micro: int
    latency_ms: int | None = None
    version: str | None = None


class KnownPeer(Message, frozen=True, kw_only=True):
    """A peer, with the contents of its last heartbeat.

    `public_key`: the peer's current key, base64. `clearing_did`: the account in this deployment
    that gets the payments for the peer's work. `is_proven`: the peer has signed a heartbeat with
    this key. `heard_ms`: the age of the last heartbeat, milliseconds; None without one. `load`: the
    taken share of the peer's capacity, 0 to 1. `offers`: by capability id, without the capabilities
    that the peer may not offer here.
    """

    id: str
    did: str
    endpoint: str
    region: str
    public_key: str
    clearing_did: str
    is_proven: bool = False
    heard_ms: int | None = None
    agent_count: int = 0
    workflow_count: int = 0
    load: float = 0.0
    offers: dict[str, PeerOffer] = field(default_factory=dict)

    @property
    def status(self) -> PeerStatus:
        """The status of the peer, by the age of its last heartbeat."""
        return status_of(self.heard_ms)


class PeerRoute(NamedTuple):
    """A peer that may get a node, with the reason for its place in the order."""

    peer: KnownPeer
    offer: PeerOffer
    reason: RoutingReason


def status_of(heard_ms: int | None) -> PeerStatus:
    """Return the status of a peer.

    Args:
        heard_ms: the age of its last heartbeat, milliseconds; None without one.
    """
    if heard_ms is None:
        return PeerStatus.ADDED
    if heard_ms <= FRESH_MS:
        return PeerStatus.ACTIVE
    return PeerStatus.STALE if heard_ms <= ROUTABLE_MS else PeerStatus.UNREACHABLE


def peer_routes(
    peers: Iterable[KnownPeer],
    capability_id: str,
    *,
    region: str | None = None,
    fallback_regions: Sequence[str] = (),
    is_for_work: bool = True,
) -> list[PeerRoute]:
    """Return the peers that may get a node of a capability, the first choice first.

    Peers of the preferred region come first, then the peers of each fallback region in the order of
    these regions, then all others. Within these groups, the peer with the lowest load comes first.
    A peer whose last heartbeat is older than 5 min is left out.

    Args:
        peers: all known peers.
        capability_id: the capability of the node.
        region: the preferred region; None: there is none.
        fallback_regions: the regions to try after the preferred region.
        is_for_work: whether to leave out peers that have not proven their keys.
    """
    found: list[tuple[tuple[int, float, int, str], PeerRoute]] = []
    for peer in peers:
        offer = peer.offers.get(capability_id)
        is_routable = peer.heard_ms is not None and peer.heard_ms <= ROUTABLE_MS
        if offer is None or not is_routable or (is_for_work and not peer.is_proven):
            continue
        group, reason = len(fallback_regions) + 1, RoutingReason.LEAST_LOADED
        if peer.region == region:
            group, reason = 0, RoutingReason.PREFERRED_REGION
        elif peer.region in fallback_regions:
            group = 1 + fallback_regions.index(peer.region)
            reason = RoutingReason.FALLBACK_REGION
        place = (group, peer.load, peer.workflow_count, peer.id)
        found.append((place, PeerRoute(peer, offer, reason)))
    return [route for _, route in sorted(found, key=lambda one: one[0])]
