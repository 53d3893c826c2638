"""What must be true of stakes, auctions and reputation when everything has ended, asked of the
database and of the chain.

Reference: money.md (Auctions, Slashing, Reputation, Stakes).
"""

from __future__ import annotations

from typing import Any, Final, LiteralString

import psycopg
from psycopg.rows import dict_row

from ledger.features.reputation import BOTH, compared

# A lock is known by its agent, workflow, node and attempt, or round if it is a bid's; a slash says
# them in its evidence. Amounts of locks for auctioned nodes are sealed: the accounts must be empty.
_LOCKS: Final[LiteralString] = """
    WITH place AS (
        SELECT target_id AS did, event_type, (payload ->> 'amountCredits')::numeric AS amount,
            coalesce(payload -> 'evidence', payload) AS at
        FROM event WHERE event_type IN ('stake.locked', 'stake.unlocked', 'stake.slashed')
    ), lock AS (
        SELECT did, at ->> 'workflowId' AS workflow_id, at ->> 'nodeId' AS node,
            (at ->> 'attempt')::int AS attempt, (at ->> 'round')::int AS round,
            count(*) FILTER (WHERE event_type = 'stake.locked') AS locked,
            count(*) FILTER (WHERE event_type = 'stake.unlocked') AS unlocked,
            count(*) FILTER (WHERE event_type = 'stake.slashed') AS slashed,
            CASE WHEN bool_and(amount IS NOT NULL) THEN
                sum(CASE event_type WHEN 'stake.locked' THEN amount ELSE -amount END)
                ELSE 0 END AS rest
        FROM place GROUP BY 1, 2, 3, 4, 5)"""
_CLOSED: Final[LiteralString] = """
    WITH closed AS (
        SELECT target_id AS workflow_id, payload::jsonb AS payload FROM event
        WHERE event_type = 'auction.closed')"""

CHECKS: dict[str, LiteralString] = {
    "stake is locked after the end": """
        SELECT address, balance FROM account WHERE kind = 'stake_locked' AND balance <> 0""",
    "a row says that stake is locked after the end": """
        SELECT workflow_id, name, stake_micro FROM node WHERE stake_micro <> 0""",
    "an escrow account is not empty": """
        SELECT address, balance FROM account WHERE kind = 'escrow' AND balance <> 0""",
    "a lock has not exactly one end": _LOCKS + """
        SELECT * FROM lock WHERE locked <> 1 OR rest <> 0 OR unlocked > 1 OR slashed > 1""",
    "stake was slashed of an attempt that did not fail its node": _LOCKS + """
        SELECT l.* FROM lock l JOIN node n ON n.workflow_id::text = l.workflow_id
            AND n.name = l.node
        WHERE l.slashed > 0 AND (n.status NOT IN ('failed', 'timeout') OR n.attempt <> l.attempt)
        """,
    "a line is paid twice": """
        SELECT workflow_id, node_id, kind FROM entry WHERE kind IN ('node_payment', 'protocol_fee')
        GROUP BY 1, 2, 3 HAVING count(*) > 1""",
    "a node has not cost what was paid for it": """
        SELECT n.workflow_id, n.name, n.cost_micro, p.paid FROM node n LEFT JOIN (
            SELECT workflow_id, split_part(node_id, '#', 1) AS name, sum(amount) AS paid
            FROM entry WHERE kind IN ('node_payment', 'protocol_fee') GROUP BY 1, 2
        ) p USING (workflow_id, name) WHERE n.cost_micro <> coalesce(p.paid, 0)""",
    "a round is open after the end": """
        SELECT workflow_id, node, round FROM auction WHERE status = 'open' OR closed_ms IS NULL""",
    "a round was not closed exactly once": _CLOSED + """
        SELECT a.workflow_id, a.node, a.round, count(c.payload) FROM auction a LEFT JOIN closed c
            ON c.workflow_id = a.workflow_id::text AND c.payload ->> 'nodeId' = a.node
            AND (c.payload ->> 'round')::int = a.round
        GROUP BY 1, 2, 3 HAVING count(c.payload) <> 1""",
    "a round's number is not the next one": """
        SELECT workflow_id, node FROM auction GROUP BY 1, 2
        HAVING min(round) <> 1 OR max(round) <> count(*)""",
    "a bid was taken and not heard": _CLOSED + """
        SELECT b.workflow_id, b.node, b.round, b.agent_did FROM bid b JOIN closed c
            ON c.workflow_id = b.workflow_id::text AND c.payload ->> 'nodeId' = b.node
            AND (c.payload ->> 'round')::int = b.round
        WHERE NOT b.is_standing AND c.payload ->> 'status' <> 'cancelled' AND NOT EXISTS (
            SELECT 1 FROM jsonb_array_elements(c.payload -> 'bids') said
            WHERE said ->> 'agentDid' = b.agent_did)""",
    "not the lowest has won at the second-lowest bid": """
        SELECT a.workflow_id, a.node, a.round, a.winner_did, a.price_micro, s.bids FROM auction a
        LEFT JOIN (
            SELECT b.workflow_id, b.node, b.round,
                array_agg(b.amount_micro ORDER BY b.amount_micro) AS bids
            FROM bid b JOIN auction USING (workflow_id, node, round)
            WHERE NOT coalesce(auction.excluded::jsonb ? b.agent_did, false) GROUP BY 1, 2, 3
        ) s USING (workflow_id, node, round)
        LEFT JOIN bid won ON (won.workflow_id, won.node, won.round, won.agent_did)
            = (a.workflow_id, a.node, a.round, a.winner_did)
        WHERE a.status = 'awarded' AND (won.amount_micro IS DISTINCT FROM s.bids[1]
            OR a.price_micro IS DISTINCT FROM coalesce(s.bids[2], s.bids[1]))""",
    "a winner was not paid what its round says": """
        SELECT n.workflow_id, n.name, n.agent_did, n.cost_micro, a.winner_did, a.price_micro
        FROM node n LEFT JOIN auction a
            ON (a.workflow_id, a.node) = (n.workflow_id, n.name) AND a.round = (
                SELECT max(round) FROM auction l WHERE l.status = 'awarded'
                    AND (l.workflow_id, l.node) = (n.workflow_id, n.name))
        WHERE n.auction_round > 0 AND n.status = 'success' AND (
            a.winner_did IS DISTINCT FROM n.agent_did
            OR a.price_micro IS DISTINCT FROM n.cost_micro)""",
}  # fmt: skip
# Workflows in whose closed auctions an agent has bid live.
BIDDEN: Final[LiteralString] = """
    SELECT target_id FROM event, json_array_elements(payload -> 'bids') said
    WHERE event_type = 'auction.closed' AND said ->> 'agentDid' = %s"""
# What a load must have made happen, or these checks have seen nothing.
_SEEN: dict[str, LiteralString] = {
    "rounds": "SELECT count(*) FROM auction",
    "live bids": "SELECT count(*) FROM bid WHERE NOT is_standing",
    "locks": "SELECT count(*) FROM event WHERE event_type = 'stake.locked'",
    "slashes": "SELECT count(*) FROM event WHERE event_type = 'stake.slashed'",
    "token prices": "SELECT count(*) FROM node WHERE price_json IS NOT NULL AND cost_micro > 0",
    "verifications": "SELECT count(*) FROM entry WHERE node_id LIKE '%#verify%'",
}


def wrong_reputation(connection: psycopg.Connection[Any]) -> dict[str, Any]:
    """Return agents whose counts are not what history gives: (stored, found)."""
    row = connection.cursor(row_factory=dict_row).execute(BOTH).fetchone()  # type: ignore[arg-type]
    assert row is not None
    counts = compared(row["history"], row["stored"])
    return {did: both for did, both in counts.items() if both[0] != both[1]}


def seen(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Return how much of the market there was."""
    found = {}
    for name, query in _SEEN.items():
        row = connection.execute(query).fetchone()
        assert row is not None
        found[name] = int(row[0])
    return found
