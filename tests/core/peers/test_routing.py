"""The order in which peers get work: a table, and properties of any set of peers.

Reference: features.md (Routing between regions).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.peers.routing import (
    FRESH_MS,
    ROUTABLE_MS,
    KnownPeer,
    PeerOffer,
    peer_routes,
    status_of,
)
from core.records.statuses import PeerStatus, RoutingReason

CAPABILITY = "cap.text.v1"
OFFERS = {CAPABILITY: PeerOffer(5)}


def peer(
    peer_id: str,
    region: str = "eu",
    *,
    heard_ms: int | None = 0,
    load: float = 0.0,
    workflow_count: int = 0,
    is_proven: bool = True,
    offers: dict[str, PeerOffer] = OFFERS,
) -> KnownPeer:
    return KnownPeer(
        id=peer_id,
        did=f"did:callboard:{peer_id}",
        endpoint="https://peer",
        region=region,
        public_key="key",
        clearing_did=f"did:callboard:clearing-{peer_id}",
        is_proven=is_proven,
        heard_ms=heard_ms,
        workflow_count=workflow_count,
        load=load,
        offers=offers,
    )


@pytest.mark.parametrize(
    ("heard_ms", "status"),
    [
        (None, PeerStatus.ADDED),
        (-5, PeerStatus.ACTIVE),
        (FRESH_MS, PeerStatus.ACTIVE),
        (FRESH_MS + 1, PeerStatus.STALE),
        (ROUTABLE_MS, PeerStatus.STALE),
        (ROUTABLE_MS + 1, PeerStatus.UNREACHABLE),
    ],
)
def test_the_status_follows_the_age_of_the_last_heartbeat(
    heard_ms: int | None, status: PeerStatus
) -> None:
    assert status_of(heard_ms) is status
    assert peer("a", heard_ms=heard_ms).status is status


def test_the_preferred_region_comes_first_then_the_fallback_regions_in_their_order() -> None:
    peers = [peer("a", "ap"), peer("b", "us"), peer("c", "eu", load=0.9), peer("d", "sa")]
    found = peer_routes(peers, CAPABILITY, region="eu", fallback_regions=("sa", "us"))
    assert [(one.peer.id, one.reason.value) for one in found] == [
        ("c", "preferred_region"),
        ("d", "fallback_region"),
        ("b", "fallback_region"),
        ("a", "least_loaded"),
    ]


def test_within_a_group_the_load_decides_then_the_workflows_then_the_id() -> None:
    peers = [
        peer("d", load=0.5),
        peer("c", load=0.1, workflow_count=2),
        peer("b", load=0.1, workflow_count=1),
        peer("a", load=0.1, workflow_count=2),
    ]
    assert [one.peer.id for one in peer_routes(peers, CAPABILITY)] == ["b", "a", "c", "d"]


def test_only_peers_that_were_heard_and_offer_the_capability_are_candidates() -> None:
    peers = [
        peer("a", heard_ms=ROUTABLE_MS + 1),
        peer("b", heard_ms=None),
        peer("c", offers={"cap.other.v1": PeerOffer(1)}),
        peer("d", is_proven=False),
    ]
    assert peer_routes(peers, CAPABILITY) == []
    assert [r.peer.id for r in peer_routes(peers, CAPABILITY, is_for_work=False)] == ["d"]


REGIONS = st.sampled_from(["eu", "us", "ap"])
PEERS = st.lists(
    st.builds(
        peer,
        st.text("abcdef", min_size=1, max_size=3),
        REGIONS,
        heard_ms=st.none() | st.integers(0, 2 * ROUTABLE_MS),
        load=st.floats(0, 1),
        workflow_count=st.integers(0, 3),
        is_proven=st.booleans(),
        offers=st.sampled_from([OFFERS, {}]),
    ),
    max_size=8,
    unique_by=lambda one: one.id,
)


@given(PEERS, st.none() | REGIONS, st.lists(REGIONS, unique=True), st.booleans(), st.randoms())
def test_the_order_is_that_of_the_groups_whatever_the_order_of_the_peers(
    peers: list[KnownPeer],
    region: str | None,
    fallback_regions: list[str],
    is_for_work: bool,
    shuffled: object,
) -> None:
    found = peer_routes(
        peers,
        CAPABILITY,
        region=region,
        fallback_regions=fallback_regions,
        is_for_work=is_for_work,
    )
    shuffled.shuffle(peers)  # type: ignore[attr-defined]
    assert found == peer_routes(
        peers,
        CAPABILITY,
        region=region,
        fallback_regions=fallback_regions,
        is_for_work=is_for_work,
    )
    reasons = [list(RoutingReason).index(one.reason) for one in found]
    assert reasons == sorted(reasons)
    for one in found:
        assert one.offer is one.peer.offers[CAPABILITY]
        assert one.peer.is_proven or not is_for_work
        assert one.peer.status in (PeerStatus.ACTIVE, PeerStatus.STALE)
        assert (one.reason is RoutingReason.PREFERRED_REGION) == (one.peer.region == region)
    assert len(found) == sum(
        bool(one.offers)
        and one.heard_ms is not None
        and one.heard_ms <= ROUTABLE_MS
        and (one.is_proven or not is_for_work)
        for one in peers
    )
