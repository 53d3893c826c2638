"""What the writer reads of auctions: open rounds with their bids, how many bids are kept.

money.md (Auctions); decision http-edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from msgspec.structs import replace

from core.market.auction import LIVE_BIDS_MAX, Bid
from ledger.auctions.auction_commands import NO_ROUND, bids_key
from ledger.connections.connecting import columns_of, fetch
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import OpenRound, StateCache

# One by one: a plan that was made when there were few bids never reads all of them.
COUNT_KEPT: Final = """
    SELECT p.workflow_id::text, p.node, b.count
    FROM unnest(%s::uuid[], %s::text[]) AS p(workflow_id, node) CROSS JOIN LATERAL (
        SELECT count(*) FROM callboard.bid
        WHERE workflow_id = p.workflow_id AND node = p.node AND round = %s) AS b
"""


async def load_rounds(
    connection: psycopg.AsyncConnection[Any], cache: StateCache, pairs: Sequence[tuple[str, str]]
) -> None:
    """Put the open rounds of these (workflow, node) pairs into the cache, None where none is."""
    asked: dict[str, tuple[str, str]] = {}
    places = columns_of(pairs)
    opened = await fetch(
        connection,
        "SELECT a.workflow_id::text, a.node, a.round, a.reserve_micro, a.closes_ms, a.stake_bps"
        " FROM callboard.auction a JOIN unnest(%s::uuid[], %s::text[]) AS p(workflow_id, node)"
        " ON a.workflow_id = p.workflow_id AND a.node = p.node WHERE a.status = 'open'",
        places,
    )
    for workflow_id, node, number, reserve_micro, closes_ms, stake_bps in opened:
        cache.rounds[workflow_id, node] = OpenRound(
            number, reserve_micro, closes_ms, stake_bps=stake_bps
        )
        asked[bids_key(workflow_id, node, number)] = (workflow_id, node)
    # Bids that another writer has sent are all there are, however far its clock was ahead.
    sent = "SELECT id FROM callboard.command WHERE id = ANY(%s)"
    for (key,) in await fetch(connection, sent, (list(asked),)):
        round_ = cache.rounds[asked[key]]
        assert round_ is not None, key
        round_.is_over = True
    bids = await fetch(
        connection,
        "SELECT b.workflow_id::text, b.node, b.agent_did, b.amount_micro, b.eta_ms,"
        " b.stake_offered_micro, b.received_ms, b.stake_locked_micro, b.owner_did"
        " FROM callboard.auction a"
        " JOIN unnest(%s::uuid[], %s::text[]) AS p(workflow_id, node)"
        " ON a.workflow_id = p.workflow_id AND a.node = p.node"
        # The bids that the round holds: `highest_held` has the same order.
        " CROSS JOIN LATERAL (SELECT l.*, coalesce(g.owner_did, '') AS owner_did,"
        " row_number() OVER (PARTITION BY coalesce(g.owner_did, l.agent_did)"
        ' ORDER BY l.amount_micro, l.received_ms, l.agent_did COLLATE "C") > 1 AS is_spare'
        " FROM callboard.bid l LEFT JOIN callboard.agent g ON g.did = l.agent_did"
        " WHERE l.workflow_id = a.workflow_id AND l.node = a.node AND l.round = a.round"
        " AND NOT l.is_standing"
        ' ORDER BY is_spare, amount_micro, received_ms, agent_did COLLATE "C" LIMIT %s) AS b'
        " WHERE a.status = 'open' ORDER BY b.received_ms, b.agent_did",
        (*places, LIVE_BIDS_MAX),
    )
    for workflow_id, node, *fields, locked_micro, owner_did in bids:
        bid = replace(Bid(*fields), stake_locked_micro=locked_micro, owner_did=owner_did)
        round_ = cache.rounds[workflow_id, node]
        assert round_ is not None, bid
        round_.bids[bid.agent_did] = bid


def find_bidders(cache: StateCache, read_set: ReadSet) -> set[str]:
    """Return the agents whose bids in these rounds have locked stake."""
    rounds = (cache.rounds[place] for place in read_set.rounds)
    bids = (bid for round_ in rounds if round_ is not None for bid in round_.bids.values())
    return {bid.agent_did for bid in bids if bid.stake_locked_micro}


async def count_kept_bids(
    connection: psycopg.AsyncConnection[Any], cache: StateCache, pairs: Sequence[tuple[str, str]]
) -> None:
    """Put into the cache how many bids of these (workflow, node) pairs no round counts."""
    cache.kept_bids.update(dict.fromkeys(pairs, 0))
    places = columns_of(pairs)
    for workflow_id, node, count in await fetch(connection, COUNT_KEPT, (*places, NO_ROUND)):
        cache.kept_bids[workflow_id, node] = count
