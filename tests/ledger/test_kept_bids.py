"""Bids that no round of an auction counts: sealed where another round may come, and bounded.

Decision http-edge.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from core.errors import ErrorCode
from core.market.auction import KEPT_BIDS_MAX
from ledger.commands import OutcomeStatus
from ledger.features.auctions import COUNT_KEPT, NO_ROUND, KeepBid, bid_key
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor, connect
from tests.ledger.making import AGENT, AT, Flow, NextWriter, card, errors, new_id

OTHER = "did:test:other"


def kept(flow: Flow, did: str = AGENT, **changes: Any) -> KeepBid:
    """Return a bid for the node of a workflow that takes none."""
    fields: dict[str, Any] = {
        "key": bid_key(flow.id, "a", NO_ROUND, did),
        "request_hash": b"k",
        "actor_did": did,
        "is_admin": False,
        "agent_did": did,
        "workflow_id": flow.id,
        "node": "a",
        "amount_micro": 123_457,
        "eta_ms": 4_321,
        "stake_offered_micro": 765_431,
    }
    return KeepBid(**{**fields, **changes})


async def published(store: LedgerStore) -> Flow:
    """Open a ledger with a workflow that runs, and two agents."""
    flow = Flow()
    outcomes = await store.commit([card(), card(OTHER), flow.publish()], AT)
    assert all(one.error is None for one in outcomes), outcomes
    return flow


async def refused(store: LedgerStore, command: KeepBid) -> ErrorCode | None:
    """Commit a command and return how it is refused."""
    (outcome,) = await store.commit([command], AT + 1)
    return outcome.error


@pytest.mark.parametrize("is_sealed", [False, True], ids=["fixed price", "auctioned"])
async def test_the_chain_says_how_much_is_bid_unless_the_node_is_auctioned(
    store: LedgerStore, auditor: Auditor, is_sealed: bool
) -> None:
    """A payer read the bid of an agent before the round in which it would bid."""
    flow = await published(store)
    assert await refused(store, kept(flow, is_sealed=is_sealed)) is None
    payload = auditor.one("SELECT payload FROM event WHERE event_type = 'bid.placed'")
    said = {"nodeId": "a", "agentDid": AGENT, "isCounted": False}
    terms = {"bidCredits": "0.123457", "etaMs": 4_321, "stakeOfferedCredits": "0.765431"}
    assert payload == (said if is_sealed else said | terms)


async def test_no_bid_is_kept_once_the_workflow_has_ended(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor
) -> None:
    flow = await published(store)
    assert await refused(store, kept(flow)) is None
    assert await errors(store, flow.end()) == [None]
    late = kept(flow, OTHER)
    assert await refused(store, late) is ErrorCode.ESCROW_RELEASED
    store = await next_writer()
    assert await refused(store, late) is ErrorCode.ESCROW_RELEASED
    (again,) = await store.commit([kept(flow)], AT)
    assert again.status is OutcomeStatus.REPEATED
    assert auditor.one("SELECT count(*) FROM event WHERE event_type = 'bid.placed'") == 1


async def test_a_node_keeps_so_many_bids_and_no_more(
    store: LedgerStore, next_writer: NextWriter, auditor: Auditor
) -> None:
    """By what is stored, and by what one batch takes: the writer counts once per node."""
    flow = await published(store)
    auditor.connection.execute(
        "INSERT INTO bid SELECT %s, 'a', 0, 'did:test:' || n, 1, NULL, NULL, false, 1"
        " FROM generate_series(1, %s) n",
        (flow.id, KEPT_BIDS_MAX - 1),
    )
    auditor.connection.commit()
    last = kept(flow)
    more = replace(kept(flow, OTHER), request_hash=b"m")
    assert await errors(store, last, more) == [None, ErrorCode.CONFLICT]
    elsewhere = replace(more, key=bid_key(flow.id, "b", NO_ROUND, OTHER), node="b")
    assert await refused(store, elsewhere) is None
    store = await next_writer()
    assert await refused(store, more) is ErrorCode.CONFLICT


def test_counting_the_bids_of_a_node_reads_no_others(database: Database) -> None:
    """A plan that was made when there were no bids read the index of all of them."""
    counted = COUNT_KEPT % ("$1", "$2")
    asked = f"EXECUTE counted ('{{{new_id()}}}', '{{a}}')"
    with connect(database.superuser_url) as connection:
        # As the writer's session has it.
        connection.execute("SET enable_seqscan = off")
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.execute(f"PREPARE counted (uuid[], text[]) AS {counted}")
        connection.execute(asked)
        connection.execute(
            "INSERT INTO callboard.bid SELECT gen_random_uuid(), 'a', 1, 'did:test:a', 1,"
            " NULL, NULL, false, 1 FROM generate_series(1, 2000)"
        )
        explained = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {asked}")
        row = explained.fetchone()
    assert row is not None
    assert row[0][0]["Plan"]["Shared Hit Blocks"] < 5, row
