"""What the writer reads of members and shards: all of them whole, and which members are GONE.

Decision workflow-owners-and-shards.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import psycopg

from core.records.audit import AuditEventType
from core.shards.lease_messages import HeldShard, MemberState
from core.shards.shard import SHARDS
from ledger.connections.connecting import fetch
from ledger.writer.state_cache import KnownMember, StateCache

MAP_EVENTS: Final = (
    AuditEventType.MEMBER_JOINED,
    AuditEventType.MEMBER_CHANGED,
    AuditEventType.SHARDS_TAKEN,
    AuditEventType.SHARDS_GIVEN,
)


async def load_cluster(connection: psycopg.AsyncConnection[Any], cache: StateCache) -> None:
    """Read the members that are not GONE, all shards, and the version of this map.

    The version is that of every writer: a member that knows the map need not be sent it again by
    the next one.
    """
    members = await fetch(
        connection,
        "SELECT id, machine, address, version, state, joined_ms FROM callboard.member"
        " WHERE state <> 'gone'",
    )
    cache.members = {
        member: KnownMember(machine, address, version, MemberState(state), joined_ms)
        for member, machine, address, version, state, joined_ms in members
    }
    shards = await fetch(connection, "SELECT member, epoch FROM callboard.shard ORDER BY id")
    cache.shards = [HeldShard(*held) for held in shards]
    assert len(cache.shards) == SHARDS, len(cache.shards)
    (row,) = await fetch(
        connection,
        "SELECT coalesce(max(newest.audit_id), 0) FROM unnest(%s::text[]) AS of (type),"
        " LATERAL (SELECT audit_id FROM callboard.audit_event WHERE event_type = of.type"
        " ORDER BY audit_id DESC LIMIT 1) AS newest",
        ([event.value for event in MAP_EVENTS],),
    )
    cache.map_version = int(row[0])


async def load_gone_members(
    connection: psycopg.AsyncConnection[Any], cache: StateCache, ids: Collection[str]
) -> None:
    """Read which of these members are GONE."""
    query = "SELECT id FROM callboard.member WHERE id = ANY(%s) AND state = 'gone'"
    cache.gone_members.update(member for (member,) in await fetch(connection, query, (list(ids),)))
