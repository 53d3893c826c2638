"""Peers as they are stored: additions, heartbeats, keys, what this deployment says, and trust.

Reference: features.md (Peers).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from core.errors import ErrorCode
from core.json_text import write_json
from core.market.pricing import FixedPrice
from core.peers.routing import KnownPeer, PeerOffer
from core.records.api.peers import OfferSent, PeerHeartbeat, TrustEventRead, TrustPageRead
from core.records.statuses import SubnetType
from core.settings import Settings
from core.trust.signing_keys import SigningKey
from ledger.features.keys import standing_rows
from ledger.features.own_state import read_own_did, read_own_state, read_trust_events
from ledger.features.peers import (
    PEERS_MAX,
    AddPeer,
    PeerReader,
    PeerStore,
    RemovePeer,
    RotatePeerKey,
    is_agent_revoked,
    peer_row,
    present_peers,
    read_peer_dids,
)
from ledger.features.prices import SetPrice
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import (
    AGENT,
    AT,
    GENESIS,
    api_key,
    card,
    errors,
    new_key,
    open_store,
    revoke,
    unrevoke,
)
from tests.ledger.test_subnets import ID as SUBNET
from tests.ledger.test_subnets import subnet

OPERATOR = "did:test:operator"
OWN = SigningKey(b"o" * 32)
OPEN = "0197d000-0000-7000-8000-00000000b009"


@pytest.fixture
async def peers(database: Database) -> AsyncIterator[PeerStore]:
    store = PeerStore(database.service_url)
    yield store
    await store.close()


@pytest.fixture
async def store(database: Database) -> AsyncIterator[LedgerStore]:
    genesis = dataclasses.replace(GENESIS, public_key=OWN.public_key, sealed_key=b"sealed")
    opened = await open_store(database.service_url, genesis=genesis)
    yield opened
    await opened.close()


def add(number: int = 1, **changes: Any) -> AddPeer:
    key = SigningKey(number.to_bytes(32, "big"))
    made = AddPeer(
        key=new_key(),
        actor_did=OPERATOR,
        peer_id=f"p{number}",
        did=f"did:callboard:{key.key_id}",
        endpoint="https://peer.example",
        region="eu",
        public_key=key.public_key,
        capabilities=None,
    )
    return replace(made, **changes)


async def read_peers(reader: LedgerReader) -> list[KnownPeer]:
    return await PeerReader(reader).read()


def beat(at: int | None = AT, *offered: str, **members: Any) -> PeerHeartbeat:
    offers = [OfferSent(id=one, price_credits=7, latency_ms=5) for one in offered]
    return PeerHeartbeat(at=at, capabilities=offers, **members)


async def test_a_peer_is_stored_once_with_its_id_its_did_and_its_account(
    store: LedgerStore, reader: LedgerReader, auditor: Auditor
) -> None:
    first = add()
    await store.commit([first, api_key("k", b"k" * 32, owner_did="did:callboard:key"), card()], AT)
    (known,) = await read_peers(reader)
    assert (known.id, known.did, known.heard_ms, known.is_proven) == ("p1", first.did, None, False)
    assert known.clearing_did == first.did.replace("callboard:", "callboard:clearing-")
    refused = [
        add(), add(2, peer_id="p1"), add(1, peer_id="p2"), add(3, did="did:callboard:key"),
        add(4, did=AGENT), add(5, did=await read_own_did(reader)),
    ]  # fmt: skip
    codes = [outcome.error for outcome in await store.commit(refused, AT)]
    assert codes == [ErrorCode.CONFLICT] * 5 + [ErrorCode.INVALID_REQUEST]
    others = [add(number) for number in range(10, 10 + PEERS_MAX)]
    *_, last = await store.commit(others, AT)
    assert last.error is ErrorCode.QUOTA_EXCEEDED
    # Removed, it keeps its id for itself.
    gone = RemovePeer(key=new_key(), actor_did=OPERATOR, peer_id="p1")
    again = replace(gone, key=new_key())
    removed, twice, taken = await store.commit([gone, again, add(6, peer_id="p1")], AT)
    assert (removed.error, twice.error) == (None, ErrorCode.NOT_FOUND)
    assert taken.error is ErrorCode.CONFLICT
    assert await peer_row(reader, "p1") is None
    kept = await peer_row(reader, "p1", is_removed_too=True)
    assert kept is not None and kept["clearing_did"] == known.clearing_did
    assert first.did in await read_peer_dids(reader)
    assert first.did not in [one["did"] for one in await present_peers(reader)]
    (back,) = await store.commit([add(region="us")], AT)
    row = await peer_row(reader, first.did, by="did")
    assert back.error is None and row is not None and row["region"] == "us"


async def test_a_peers_did_signs_by_its_current_key_while_it_is_a_peer(
    store: LedgerStore, reader: LedgerReader, auditor: Auditor
) -> None:
    first = add()
    await store.commit([first], AT)
    assert (await standing_rows(reader, [first.did]))[first.did]["peer_key"] == first.public_key
    rotation = RotatePeerKey(
        key="one", peer_id="p1", former_key=first.public_key, public_key=OWN.public_key
    )
    outcomes = await errors(store, rotation, rotation, replace(rotation, key="two"))
    assert outcomes == [None, None, ErrorCode.CONFLICT]
    assert (await standing_rows(reader, [first.did]))[first.did]["peer_key"] == OWN.public_key
    gone = RemovePeer(key=new_key(), actor_did=OPERATOR, peer_id="p1")
    assert (await store.commit([gone, replace(rotation, key="three")], AT))[1].error is not None
    assert await standing_rows(reader, [first.did]) == {}


async def test_of_heartbeats_of_one_time_one_is_taken(
    store: LedgerStore, reader: LedgerReader, peers: PeerStore, database: Database
) -> None:
    first = add(capabilities=("cap.a", "cap.b"))
    await store.commit([first], AT)
    heartbeat = beat(AT, "cap.a", "cap.c", agent_count=3, load=0.5)
    key, other = first.public_key, PeerStore(database.service_url)
    taken = await asyncio.gather(
        *(one.store_heartbeat("p1", heartbeat, key=key) for one in (peers, other) * 4)
    )
    await other.close()
    assert sorted(taken) == [False] * 7 + [True]
    assert not await peers.store_heartbeat("p1", beat(AT - 1), key=key)
    (known,) = await read_peers(reader)
    assert known.is_proven and known.heard_ms is not None and known.heard_ms < 60_000
    assert (known.agent_count, known.load) == (3, 0.5)
    assert known.offers == {"cap.a": PeerOffer(7, 5)}, "of what it may offer here"
    # An operator's proves nothing, and moves no time that a signed one must pass.
    assert await peers.store_heartbeat("p1", PeerHeartbeat(workflow_count=2), key=None)
    assert await peers.store_heartbeat("p1", beat(AT + 1), key=key)
    (known,) = await read_peers(reader)
    assert (known.agent_count, known.workflow_count, known.offers) == (3, 2, {})
    # With another key it has proven nothing yet.
    await store.commit(
        [RotatePeerKey(key="r", peer_id="p1", former_key=key, public_key=OWN.public_key)], AT
    )
    assert not (await read_peers(reader))[0].is_proven


async def test_offers_are_read_again_after_a_heartbeat_or_a_change_of_the_peer(
    store: LedgerStore, reader: LedgerReader, peers: PeerStore
) -> None:
    await store.commit([add(), add(2)], AT)
    for one in ("p1", "p2"):
        assert await peers.store_heartbeat(one, beat(AT, "cap.a", load=0.1), key="k")
    reads = PeerReader(reader)
    before = await reads.read()
    assert [one.offers for one in before] == [{"cap.a": PeerOffer(7, 5)}] * 2
    assert await peers.store_heartbeat("p1", beat(AT + 1, "cap.b", load=0.9), key="k")
    after = await reads.read()
    assert (after[0].load, after[0].offers) == (0.9, {"cap.b": PeerOffer(7, 5)})
    assert after[1].offers is before[1].offers
    gone = RemovePeer(key=new_key(), actor_did=OPERATOR, peer_id="p1")
    await store.commit([gone, add(capabilities=("cap.c",))], AT)
    assert [one.offers for one in await reads.read()] == [{}, before[1].offers]
    await store.commit([replace(gone, key=new_key(), peer_id="p2")], AT)
    assert [one.id for one in await reads.read()] == ["p1"]


def offering(did: str, price: Any, capability: str = "cap.x.v1", **members: Any) -> Any:
    """Return the registration of an agent that offers a capability."""
    described = {"did": did, "capabilities": [{"id": capability, **price}]}
    card_json = write_json(described).decode()
    return card(did=did, capability_ids=(capability,), card_json=card_json, **members)


async def test_the_cheapest_fixed_prices_of_live_agents_are_offered(
    store: LedgerStore, reader: LedgerReader
) -> None:
    per_token = {"pricing": {"model": "per-token", "inputRate": "1", "outputRate": "1"}}
    odd = {"price_cents": 1, "x": "\0"}
    registered = SetPrice(
        key=new_key(), actor_did=OPERATOR, capability_id="cap.set.v1", price=FixedPrice(50_000)
    )
    gone = "did:test:revoked"
    await store.commit(
        [
            offering("did:test:dear", {"price_cents": 30}),
            offering("did:test:cheap", {"price_cents": 20}),
            offering(gone, {"price_cents": 1}),
            revoke(gone),
            offering("did:test:token", per_token, "cap.token.v1"),
            offering("did:test:free", {}, "cap.free.v1"),
            offering("did:test:odd", odd, "cap.odd.v1"),
            subnet(),
            offering("did:test:subnet", {"price_cents": 1}, "cap.subnet.v1", subnet_id=SUBNET),
            subnet(subnet_id=OPEN, policy_type=SubnetType.PUBLIC),
            offering("did:test:open", {"price_cents": 3}, "cap.open.v1", subnet_id=OPEN),
            registered,
            offering("did:test:set", {}, "cap.set.v1"),
            offering("did:test:above", {"price_cents": 6}, "cap.set.v1"),
        ],
        AT,
    )
    said = await read_own_state(reader, Settings(region="eu", deployment_key="00" * 32))
    assert (said["region"], said["agentCount"], said["workflowCount"]) == ("eu", 10, 0)
    prices = {one["id"]: one["priceCredits"] for one in said["capabilities"]}
    expected = {"cap.x.v1": 0.2, "cap.free.v1": 0, "cap.set.v1": 0.05, "cap.open.v1": 0.03}
    assert prices == expected


async def test_trust_events_come_in_pages_that_part_no_entry(
    store: LedgerStore, reader: LedgerReader
) -> None:
    before = await read_trust_events(reader, 0)
    assert before == ([], before[1])
    hidden = offering("did:test:subnet", {}, subnet_id=SUBNET)
    made = [subnet(), hidden, revoke("did:test:subnet"), card(), revoke(AGENT), unrevoke(AGENT)]
    await store.commit([*made, card(did="did:test:other")], AT)
    events, to = await read_trust_events(reader, before[1])
    assert [(one["type"], one["did"]) for one in events] == [
        ("agent.revoked", AGENT),
        ("agent.unrevoked", AGENT),
    ]
    assert to > events[-1]["id"], "up to the newest entry"
    page = await read_trust_events(reader, before[1], events_max=2)
    assert page == (events, events[-1]["id"])
    assert await read_trust_events(reader, to + 7) == ([], to + 7)


async def test_revocations_of_a_peer_are_stored_in_order_lifted_and_bounded(
    store: LedgerStore, reader: LedgerReader, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, back, peers = "did:test:there", "did:test:back", PeerStore(database.service_url)
    await store.commit([add(), add(2), card()], AT)
    for one in ("p1", "p2"):
        await peers.store_heartbeat(one, beat(), key="k")

    def page(after: int, to: int, *events: tuple[str, str]) -> TrustPageRead:
        listed = [
            TrustEventRead(id=after + 1 + n, type=f"agent.{kind}", did=did, expires_at=None)
            for n, (kind, did) in enumerate(events)
        ]
        return TrustPageRead(did="did:callboard:p", after=after, to=to, events=listed)

    async def revoked() -> list[str]:
        named = (there, back, AGENT, "did:test:nobody")
        return [one for one in named if await is_agent_revoked(reader, "p1", one)]

    first = page(
        0, 6, ("revoked", there), ("revoked", AGENT), ("revoked", back), ("unrevoked", back)
    )
    assert [await peers.store_trust("p1", first) for _ in range(2)] == [True, False]
    assert await revoked() == [there], "the others: registered here, lifted, not named"
    assert not await is_agent_revoked(reader, "p2", there), "of another peer"
    rotated = replace_event(page(6, 7, ("key_rotated", there)), public_key="K")
    assert await peers.store_trust("p1", rotated)
    assert await revoked() == [there], "a new key lifts no revocation"
    assert await peers.store_trust("p1", page(7, 8, ("unrevoked", there)))
    assert await revoked() == []
    ended = replace_event(page(8, 9, ("revoked", there)), expires_at=1)
    assert await peers.store_trust("p1", ended)
    assert await revoked() == [], "it has ended"
    # A DID that is revoked here is refused wherever it works.
    await store.commit([revoke(back), revoke(AGENT)], AT)
    assert await revoked() == [back, AGENT]
    await store.commit([unrevoke(back), unrevoke(AGENT)], AT)
    # Beyond the bound the oldest go; the position moves on.
    monkeypatch.setattr("ledger.features.peers.REVOKED_MAX", 2)
    assert await peers.store_trust("p1", page(9, 12, ("revoked", there), ("revoked", back)))
    assert await revoked() == [there, back]
    third = page(12, 14, ("revoked", "did:test:nobody"), ("revoked", back))
    assert await peers.store_trust("p1", third)
    assert await revoked() == [back, "did:test:nobody"]
    await peers.close()


def replace_event(page: TrustPageRead, **members: Any) -> TrustPageRead:
    """Return a page whose only event has other members."""
    (event,) = page.events
    changed = TrustEventRead(**{**vars(event), **members})
    return TrustPageRead(did=page.did, after=page.after, to=page.to, events=[changed])
