"""The peers that may get work of a capability, in the order in which they are tried.

A peer is another Callboard deployment. Pure. Reference: features.md (Routing between regions).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import field

from core.message import Message
from core.records.statuses import PeerStatus, RoutingReason

# A peer whose last heartbeat is older is stale; after `ROUTABLE_MS` it gets no work.
FRESH_MS: Final = 60_000
ROUTABLE_MS: Final = 300_000
# A node with less time for an attempt goes to no peer. An order ends at the peer at least 1 s
# before its attempt ends here. Otherwise a payer could let the order be paid there and time out
# here.
ORDER_TIMEOUT_MS_MIN: Final = 3_000


class PeerOffer(Message, frozen=True):
    """What a peer offers of one capability: the price of a node there, its latency and version."""

    price_micro: int
    latency_ms: int | None = None
    version: str | None = None


class KnownPeer(Message, frozen=True, kw_only=True):
    """A peer, with what its last heartbeat said.

    `public_key`: base64 of its current key. `clearing_did`: the account here that gets the payments
    for the peer's work. `is_proven`: the peer has signed a heartbeat with that key. `heard_ms`: age
    of the last heartbeat, None without one. `load`: the part of its capacity that is taken, 0 to 1.
    `offers`: by capability, without those that the peer may not offer here.
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
        """State of the peer by the age of its last heartbeat."""
        return status_of(self.heard_ms)


class PeerRoute(NamedTuple):
    """A peer that may get the work, with the reason for its place in the order."""

    peer: KnownPeer
    offer: PeerOffer
    reason: RoutingReason


def status_of(heard_ms: int | None) -> PeerStatus:
    """Return the status of a peer whose last heartbeat is this old; None: it has sent none."""
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
    """Return the peers that may get work of a capability, the first choice first.

    Peers of the preferred region come first, then those of the fallback regions in the order of the
    regions, then all others. Within each of these groups the peer with the least load comes first.

    Args:
        region: the preferred region; None: there is none.
        fallback_regions: the regions to try after it.
        is_for_work: only peers that have proven their keys. Otherwise all peers whose last
            heartbeat is at most 5 min old.
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
