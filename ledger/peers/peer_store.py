"""Store the newest heartbeat of each peer, and the agents that it has revoked.

Reference: features.md (Peers).
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from core.json_text import write_json
from core.records.api.peers import PeerHeartbeat, TrustPageRead
from core.records.audit import AuditEventType
from ledger.connections.pools import OperationalPool
from ledger.schema import typed

REVOKED_MAX: Final = 100_000
_REVOCATIONS: Final = (AuditEventType.AGENT_REVOKED, AuditEventType.AGENT_UNREVOKED)

_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
# What a heartbeat does not say keeps its value.
_HEARTBEAT: Final = sql.text(
    f"""
    INSERT INTO callboard.peer_live AS l (peer_id, at_ms, heartbeat_ms, proven_key, proven_ms,
        agent_count, workflow_count, load, offers)
    VALUES (:peer_id, :at_ms, {_NOW}, :key, CASE WHEN :key IS NOT NULL THEN {_NOW} END,
        coalesce(:agent_count, 0), coalesce(:workflow_count, 0), coalesce(:load, 0),
        CAST(:offers AS json))
    ON CONFLICT (peer_id) DO UPDATE SET
        at_ms = coalesce(excluded.at_ms, l.at_ms),
        heartbeat_ms = excluded.heartbeat_ms,
        proven_key = coalesce(excluded.proven_key, l.proven_key),
        proven_ms = coalesce(excluded.proven_ms, l.proven_ms),
        agent_count = coalesce(:agent_count, l.agent_count),
        workflow_count = coalesce(:workflow_count, l.workflow_count),
        load = coalesce(:load, l.load),
        offers = coalesce(excluded.offers, l.offers)
    WHERE excluded.at_ms IS NULL OR l.at_ms IS NULL OR excluded.at_ms > l.at_ms
    RETURNING peer_id
    """
).bindparams(*typed(bigint="at_ms agent_count workflow_count", text="key offers", double="load"))
# Stored together with the position, and only if nothing was stored since the page was asked for.
# An agent that is not revoked any more has no row. Beyond the bound the oldest revocations go: a
# peer can revoke as many agents as it likes, and a newer revocation is worth more.
_TRUST: Final = sql.text(
    """
    WITH given AS (
        SELECT * FROM json_to_recordset(CAST(:rows AS json)) AS r(
            did text, revoked_id bigint, expires_ms bigint)
    ), moved AS (
        UPDATE callboard.peer_live SET trust_id = :to
        WHERE peer_id = :peer_id AND trust_id = :after
        RETURNING peer_id
    ), gone AS (
        DELETE FROM callboard.peer_agent a USING moved m WHERE a.peer_id = m.peer_id AND (
            a.did IN (SELECT did FROM given WHERE revoked_id IS NULL)
            OR EXISTS (SELECT FROM given WHERE revoked_id IS NOT NULL)
            AND a.did NOT IN (SELECT did FROM given) AND a.did IN (
                SELECT did FROM callboard.peer_agent WHERE peer_id = :peer_id
                ORDER BY revoked_id DESC
                OFFSET greatest(0, :most - (SELECT count(*) FROM given))))
    ), stored AS (
        INSERT INTO callboard.peer_agent (peer_id, did, revoked_id, expires_ms)
        SELECT m.peer_id, g.did, g.revoked_id, g.expires_ms
        FROM moved m CROSS JOIN given g WHERE g.revoked_id IS NOT NULL
        ON CONFLICT (peer_id, did) DO UPDATE
            SET revoked_id = excluded.revoked_id, expires_ms = excluded.expires_ms
    )
    SELECT peer_id FROM moved
    """
).bindparams(*typed(bigint="to after most"))


class PeerStore(OperationalPool):
    """The rows of peers that no command writes, written as the role `ops_writer`."""

    # Commits wait for the disk: after a crash a lost heartbeat could be replayed.
    name, is_durable = "callboard-peers", True

    async def store_heartbeat(
        self, peer_id: str, heartbeat: PeerHeartbeat, *, key: str | None
    ) -> bool:
        """Store a heartbeat; return False if a signed one is not later than the last signed one.

        Args:
            key: the current key of the peer, which has signed it; None: an operator has sent it.
        """
        offers = heartbeat.capabilities
        values = {
            "peer_id": peer_id,
            "at_ms": None if key is None else heartbeat.at,
            "key": key,
            "agent_count": heartbeat.agent_count,
            "workflow_count": heartbeat.workflow_count,
            "load": heartbeat.load,
            "offers": None
            if offers is None
            else write_json(
                {one.id: [one.price_credits, one.latency_ms, one.version] for one in offers}
            ).decode(),
        }
        return bool(await self.rows(_HEARTBEAT, values))

    async def store_trust(self, peer_id: str, page: TrustPageRead) -> bool:
        """Store the revocations of a trust page, and delete those that it lifts.

        Returns: False if another process has stored a page of this peer meanwhile.
        """
        newest = {event.did: event for event in page.events if event.type in _REVOCATIONS}
        rows = [
            {
                "did": did,
                "revoked_id": event.id if event.type == AuditEventType.AGENT_REVOKED else None,
                "expires_ms": event.expires_at,
            }
            for did, event in newest.items()
        ]
        values = {
            "peer_id": peer_id,
            "to": page.to,
            "after": page.after,
            "most": REVOKED_MAX,
            "rows": write_json(rows).decode(),
        }
        return bool(await self.rows(_TRUST, values))
