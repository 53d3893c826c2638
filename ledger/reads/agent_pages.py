"""Reads agents with their heartbeats and probes: one agent, or pages in the order of DIDs.

Heartbeats, probes and revocations come with the agents, so that a look-up takes one round trip.
Each set of filters has its own statement, prepared when it is first used.

An index finds the agents of a capability, but not in the order of their DIDs, and statistics do not
say how many there are. Up to `FEW_MAX` agents are found by the index and sorted. If there are more,
all agents are scanned in the order of DIDs. The scan soon finds a page, because many agents have
the capability. Reference: features.md (Registration). Decision registry-and-discovery.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import sqlalchemy as sql

from ledger.schema import agent

FEW_MAX: Final = 1_000
# All columns except the signing secret.
_COLUMNS: Final = ", ".join(one.name for one in agent.c if one.name != "signing_secret")
_CONDITIONS: Final = {
    "owner_did": "owner_did = %(owner_did)s",
    "status": "status = %(status)s",
    "name": "meta_name = %(name)s",
    "author": "meta_author = %(author)s",
    "model": "meta_model = %(model)s",
    "after_did": "did > %(after_did)s",
}
_LIVE: Final = (
    "status",
    "load",
    "queue_depth",
    "version",
    "latency_ms",
    "heartbeat_ms",
    "probe_ms",
    "probe_ok",
)
# Columns of a row `l` of `agent_live`, which may be absent; `live_of` reads them.
LIVE_COLUMNS: Final = ", ".join(
    ("l.did IS NOT NULL AS is_heard", *(f"l.{one} AS live_{one}" for one in _LIVE))
)
# Whether a DID is revoked, by the database's clock.
IS_REVOKED: Final = """
    EXISTS (SELECT 1 FROM callboard.revocation v WHERE v.did = {did}
        AND v.ended_ms IS NULL
        AND (v.expires_ms IS NULL OR v.expires_ms > extract(epoch FROM now()) * 1000))
"""
# Whether the agent with a DID is in a private subnet that the viewer or the agent's owner has not
# joined. The agent and its owner always see it. `viewer` NULL: an administrator, who sees all.
IS_HIDDEN: Final = """
    EXISTS (SELECT FROM callboard.agent p JOIN callboard.subnet s ON s.id = p.subnet_id
        WHERE p.did = {did} AND p.subnet_id IS NOT NULL AND s.policy_type = 'private'
            AND %(viewer)s::text NOT IN (p.did, p.owner_did)
            AND (SELECT count(*) FROM callboard.subnet_member m WHERE m.subnet_id = s.id
                AND m.did IN (%(viewer)s::text, p.owner_did) AND m.status = 'joined') < 2)
"""
HIDDEN_AGENT: Final = f"SELECT {IS_HIDDEN.format(did='%(did)s')} AS is_hidden"
# A lateral join, so that even a plan that was made when the table was small does not read the whole
# table.
_HEARD: Final = f"""
    SELECT found.*, {LIVE_COLUMNS}, {IS_REVOKED.format(did="found.did")} AS is_revoked
    FROM {{found}} found LEFT JOIN LATERAL (
        SELECT * FROM callboard.agent_live WHERE did = found.did OFFSET 0) l ON true
"""
HEARD_AGENT: Final = _HEARD.format(
    found=f"(SELECT {_COLUMNS} FROM callboard.agent WHERE did = %(did)s)"
)
_PAGE: Final = f"""
    WITH few AS MATERIALIZED ({{few}}), page AS (
        SELECT {_COLUMNS} FROM ({{agents}}) found
        ORDER BY did LIMIT %(limit)s OFFSET %(offset)s
    ), sized AS (
        SELECT *, count(*) OVER () AS page_rows, coalesce(sum(octet_length(card)) OVER (
                ORDER BY did ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS bytes_before
        FROM page
    )
    {_HEARD.format(found="sized")} WHERE found.bytes_before < %(bytes_max)s ORDER BY found.did
"""
# The requested status is a condition here too, because an owner may have any number of deregistered
# agents.
_FEW: Final = f"""
    SELECT did FROM callboard.agent
    WHERE capability_ids @> ARRAY[%(capability_id)s::text] AND {{status}}
    LIMIT {FEW_MAX + 1}
"""
# With an array of DIDs Postgres uses the index of DIDs; a join might read all agents. The empty
# array in the second part keeps Postgres from using the index by capability.
_OF_CAPABILITY: Final = f"""
    (SELECT * FROM callboard.agent
        WHERE did = ANY (ARRAY(SELECT did FROM few)) AND {{conditions}}
            AND (SELECT count(*) FROM few) <= {FEW_MAX}
        ORDER BY did LIMIT %(limit)s + %(offset)s)
    UNION ALL
    (SELECT * FROM callboard.agent
        WHERE capability_ids || '{{{{}}}}' @> ARRAY[%(capability_id)s::text] AND {{conditions}}
            AND (SELECT count(*) FROM few) > {FEW_MAX}
        ORDER BY did LIMIT %(limit)s + %(offset)s)
"""


# The same for statements of SQLAlchemy, the other way round.
IS_SHOWN: Final = "NOT " + IS_HIDDEN.replace("%(viewer)s::text", "CAST(:viewer AS text)")


def is_shown(did: str, viewer: str | None) -> sql.TextClause:
    """Return the condition that an agent is not hidden from a viewer (`IS_HIDDEN`).

    Args:
        did: the column with the agent's DID, as SQL.
        viewer: the viewer's DID; None: an administrator.
    """
    return sql.text(IS_SHOWN.format(did=did)).bindparams(viewer=viewer)


_IS_LISTED: Final = f"(subnet_id IS NULL OR NOT {IS_HIDDEN.format(did='agent.did')})"


@lru_cache(maxsize=256)
def agents_statement(asked: frozenset[str]) -> str:
    """Return the statement of a page. Its parameters are the filters, `viewer`, `limit`, `offset`
    and `bytes_max`. The column `page_rows` is the number of rows that the page would have without
    `bytes_max`.

    Args:
        asked: the filters: `capability_id`, `owner_did`, `status`, `name`, `author`, `model`,
            `after_did`.
    """
    named = sorted(asked - {"capability_id"})
    conditions = " AND ".join((_IS_LISTED, *(_CONDITIONS[name] for name in named)))
    if "capability_id" in asked:
        few = _FEW.format(status=_CONDITIONS["status"] if "status" in asked else "true")
        agents = _OF_CAPABILITY.format(conditions=conditions)
    else:
        few, agents = "SELECT", f"SELECT * FROM callboard.agent WHERE {conditions}"
    return _PAGE.format(few=few, agents=agents)


def live_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the heartbeats and probes in an agent's row, None if there never were any."""
    return {one: row[f"live_{one}"] for one in _LIVE} if row["is_heard"] else None
