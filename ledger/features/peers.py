"""Peers: add and remove them; their keys, heartbeats and trust events.

Reference: features.md (Peers).
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sql
from msgspec.structs import replace
from sqlalchemy.dialects.postgresql import JSON

from core.errors import ErrorCode
from core.json_text import write_json
from core.peers.documents import clearing_did, deployment_did
from core.peers.routing import KnownPeer, PeerOffer
from core.records.api.peers import PeerHeartbeat, TrustPageRead
from core.records.audit import AuditEventType
from ledger.authority import AuthorizedCommand
from ledger.commands import Command
from ledger.connections.connect import fetch
from ledger.connections.pools import OperationalPool
from ledger.reads.agent_pages import IS_REVOKED
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import peer, peer_live, typed
from ledger.tables.federation_tables import PEERS, REMOVED_PEERS, ROTATED_PEER_KEYS
from ledger.writer.batch import Batch, Refusal, Result, conflict, invalid
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet

# Commands and plans: add a peer, remove it, rotate its key.

PEERS_MAX: Final = 100

_PEERS: Final = """
SELECT id, did, public_key, removed_ms IS NOT NULL FROM callboard.peer
WHERE id = %(id)s OR (did = %(did)s AND removed_ms IS NULL)
"""
_OTHERS: Final = """
SELECT (SELECT count(*) FROM callboard.peer WHERE removed_ms IS NULL),
    EXISTS (SELECT FROM callboard.agent WHERE did = %(did)s)
        OR EXISTS (SELECT FROM callboard.agent WHERE owner_did = %(did)s)
        OR EXISTS (SELECT FROM callboard.api_key WHERE owner_did = %(did)s),
    (SELECT public_key FROM callboard.signing_key ORDER BY audit_id LIMIT 1)
"""


class AddPeer(AuthorizedCommand, frozen=True, kw_only=True):
    """Add a peer, or add it again after it was removed.

    Rejections: CONFLICT (the id or the DID is in use here), INVALID_REQUEST (the DID is that of
    this deployment), QUOTA_EXCEEDED (`PEERS_MAX`). Result: {"id": str}.
    """

    peer_id: str
    did: str
    endpoint: str
    region: str
    public_key: str
    capabilities: tuple[str, ...] | None


class RemovePeer(AuthorizedCommand, frozen=True, kw_only=True):
    """Remove a peer. Rejections: NOT_FOUND. Result: {"id": str}."""

    peer_id: str


class RotatePeerKey(Command, frozen=True, kw_only=True):
    """Replace the key of a peer by a key that its signed heartbeat has proven.

    Rejections: CONFLICT (the peer was removed, or `former_key` is no longer its key).
    """

    peer_id: str
    former_key: str
    public_key: str


async def _load(
    connection: Connection, command: AddPeer | RemovePeer | RotatePeerKey, read_set: ReadSet
) -> tuple[Any, ...]:
    """Return the stored peers with the id or the DID. For an addition, return other uses of the DID
    too."""
    did = command.did if isinstance(command, AddPeer) else ""
    values = {"id": command.peer_id, "did": did}
    found = await fetch(connection, _PEERS, values)
    return found, (await fetch(connection, _OTHERS, values))[0] if did else None


@plans(AddPeer, load=_load, outlives_credential=True)
def plan_add_peer(command: AddPeer, batch: Batch) -> Result:
    """Store a peer."""
    known, (count, is_in_use, own_key) = batch.loaded
    did = command.did
    if own_key is not None and did == deployment_did(own_key):
        raise invalid(f"{did} is this deployment itself")
    for peer_id, other_did, _, is_removed in known:
        if not is_removed or other_did != did:
            raise conflict(f"the peer {peer_id} exists already, with the DID {other_did}")
    if is_in_use:
        raise conflict(
            f"did: {did} belongs to an agent or an API key of this deployment;"
            " a peer needs a DID of its own"
        )
    if count >= PEERS_MAX:
        raise Refusal(
            ErrorCode.QUOTA_EXCEEDED, f"there are {PEERS_MAX} peers, the maximum: remove one first"
        )
    terms = {"endpoint": command.endpoint, "region": command.region}
    allowed = None if command.capabilities is None else list(command.capabilities)
    row = {"id": command.peer_id, "clearing_did": clearing_did(did)}
    batch.store(PEERS, command.peer_id, command, added_by_did=command.actor_did, **row)
    payload = {"did": did, **terms, "publicKey": command.public_key, "capabilities": allowed}
    return _changed(AuditEventType.PEER_ADDED, command, payload, batch)


@plans(RemovePeer, load=_load, outlives_credential=True)
def plan_remove_peer(command: RemovePeer, batch: Batch) -> Result:
    """Remove a peer."""
    _, did, _, _ = _present(ErrorCode.NOT_FOUND, command.peer_id, batch)
    batch.put(REMOVED_PEERS, command.peer_id, {"id": command.peer_id})
    return _changed(AuditEventType.PEER_REMOVED, command, {"did": did}, batch)


@plans(RotatePeerKey, load=_load)
def plan_rotate_peer_key(command: RotatePeerKey, batch: Batch) -> Result:
    """Replace the key of a peer."""
    _, did, public_key, _ = _present(ErrorCode.CONFLICT, command.peer_id, batch)
    if public_key != command.former_key:
        raise conflict(f"the key of the peer {command.peer_id} was replaced meanwhile")
    row = {"id": command.peer_id, "public_key": command.public_key}
    batch.put(ROTATED_PEER_KEYS, command.peer_id, row)
    payload = {"did": did, "publicKey": command.public_key, "formerPublicKey": public_key}
    batch.actor_did = did
    return _changed(AuditEventType.PEER_KEY_ROTATED, command, payload, batch)


def _present(code: ErrorCode, peer_id: str, batch: Batch) -> tuple[str, str, str, bool]:
    """Return the row of the peer with an id, if it was not removed.

    Raises:
        Refusal: there is none.
    """
    for row in batch.loaded[0]:
        if not row[3]:
            found: tuple[str, str, str, bool] = row
            return found
    raise Refusal(code, f"the peer {peer_id} is not known", is_stored=False)


def _changed(
    event: AuditEventType,
    command: AddPeer | RemovePeer | RotatePeerKey,
    payload: dict[str, Any],
    batch: Batch,
) -> Result:
    batch.is_directory_changed = True
    batch.record(event, ("peer", command.peer_id), **payload)
    return {"id": command.peer_id}


# `heard_ms` is the age of a heartbeat. Both of its times are from the database's clock.
_NOW_MS: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
# The version of a peer's offers: they change with its heartbeats and with its row.
_VERSION: Final = sql.func.concat(peer_live.c.heartbeat_ms, "-", peer.c.changed_id)
_KNOWN: Final = sql.cast(sql.bindparam("known", type_=sql.Text), JSON)[peer.c.id].astext


def _select(offers: sql.ColumnElement[Any]) -> sql.Select[Any]:
    return (
        sql.select(
            peer,
            *(one for one in peer_live.c if one.name not in ("peer_id", "offers")),
            sql.type_coerce(offers, JSON).label("offers"),
            (sql.literal_column(_NOW_MS) - peer_live.c.heartbeat_ms).label("heard_ms"),
            _VERSION.label("version"),
        )
        .select_from(peer.outerjoin(peer_live, peer_live.c.peer_id == peer.c.id))
        .order_by(peer.c.id)
    )


_IS_PRESENT: Final = peer.c.removed_ms.is_(None)
_ROWS: Final = _select(peer_live.c.offers)
_WITHOUT_OFFERS: Final = _select(sql.null()).where(_IS_PRESENT)
_CHANGED: Final = _select(
    sql.case((_KNOWN == _VERSION, sql.null()), else_=peer_live.c.offers)
).where(_IS_PRESENT)
_DIDS: Final = sql.select(peer.c.did)
# A peer's revocation of a DID that is registered here is ignored.
_IS_AGENT_REVOKED: Final = sql.text(
    f"""
    SELECT {IS_REVOKED.format(did=":did")} OR EXISTS (
        SELECT FROM callboard.peer_agent p
        WHERE p.peer_id = :peer_id AND p.did = :did
            AND (p.expires_ms IS NULL OR p.expires_ms > {_NOW_MS})
            AND NOT EXISTS (SELECT FROM callboard.agent a WHERE a.did = p.did)
    ) AS is_revoked
    """
)


class PeerReader:
    """Reads all peers repeatedly. Reads the offers of a peer again only after a new heartbeat or a
    change of its row."""

    def __init__(self, reader: LedgerReader) -> None:
        self._reader = reader
        # By peer id: the version of its offers, and the peer.
        self._known: dict[str, tuple[str, KnownPeer]] = {}

    async def read(self) -> list[KnownPeer]:
        """Return all peers that were not removed, in the order of their ids."""
        versions = {peer_id: version for peer_id, (version, _) in self._known.items()}
        rows = await self._reader.rows(_CHANGED, {"known": write_json(versions).decode()})
        found: dict[str, tuple[str, KnownPeer]] = {}
        for row in rows:
            read, known = known_peer(row), self._known.get(row["id"])
            if known is not None and known[0] == row["version"]:
                read = replace(read, offers=known[1].offers)
            found[read.id] = row["version"], read
        self._known = found
        return [one for _, one in found.values()]


async def read_peer_dids(reader: LedgerReader) -> frozenset[str]:
    """Return the DIDs of all peers that were ever added, including removed ones."""
    return frozenset(row["did"] for row in await reader.rows(_DIDS))


async def present_peers(reader: LedgerReader) -> list[RowDict]:
    """Return all peers that were not removed, without their offers."""
    return await reader.rows(_WITHOUT_OFFERS)


async def peer_page(reader: LedgerReader, *, after_id: str | None, **page: Any) -> list[RowDict]:
    """Return peers that were not removed, in the order of their ids.

    Args:
        after_id: the last id of the previous page.
        page: `limit`, `offset`, and the filter `region`.
    """
    return await reader.listed(_ROWS.where(_IS_PRESENT), "id", after_id, **page)


async def peer_row(
    reader: LedgerReader, value: str, *, by: str = "id", is_removed_too: bool = False
) -> RowDict | None:
    """Return a peer with its newest heartbeat, None if there is none.

    Args:
        value: the value of the column `by`.
        by: `id` or `did`.
        is_removed_too: also return a peer that was removed.
    """
    query = _ROWS.where(peer.c[by] == value)
    return await reader.row(query if is_removed_too else query.where(_IS_PRESENT))


async def is_agent_revoked(reader: LedgerReader, peer_id: str, did: str) -> bool:
    """Say whether an agent that is reached through a peer is revoked here or at that peer.

    The peer's revocation of a DID that is registered here is ignored.
    """
    (row,) = await reader.rows(_IS_AGENT_REVOKED, {"peer_id": peer_id, "did": did})
    return bool(row["is_revoked"])


def known_peer(row: RowDict) -> KnownPeer:
    """Return the peer of a row, with the offers that the operator allows."""
    allowed = row["capabilities"]
    stored: dict[str, Any] = row["offers"] or {}
    names = KnownPeer.__struct_fields__
    given: dict[str, Any] = {name: row[name] for name in names if row.get(name) is not None}
    given["is_proven"] = row["proven_key"] == row["public_key"]
    given["offers"] = {
        capability_id: PeerOffer(*offer)
        for capability_id, offer in stored.items()
        if allowed is None or capability_id in allowed
    }
    return KnownPeer(**given)


REVOKED_MAX: Final = 100_000
_REVOCATIONS: Final = (AuditEventType.AGENT_REVOKED, AuditEventType.AGENT_UNREVOKED)

# If a heartbeat lacks a value, the stored value stays.
_HEARTBEAT: Final = sql.text(
    f"""
    INSERT INTO callboard.peer_live AS l (peer_id, at_ms, heartbeat_ms, proven_key, proven_ms,
        agent_count, workflow_count, load, offers)
    VALUES (:peer_id, :at_ms, {_NOW_MS}, :key, CASE WHEN :key IS NOT NULL THEN {_NOW_MS} END,
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
# Stores a page of revocations together with the position, only if no other page was stored since
# this one was requested. An agent that is no longer revoked has no row. Above the maximum the
# oldest revocations are deleted, because a peer can revoke any number of agents.
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
    """Stores what peers send, without commands, as the role `ops_writer`."""

    # Commits wait for the disk: after a crash a lost heartbeat could be replayed.
    name, is_durable = "callboard-peers", True

    async def store_heartbeat(
        self, peer_id: str, heartbeat: PeerHeartbeat, *, key: str | None
    ) -> bool:
        """Store a heartbeat. Return False if it is signed, and not later than the last signed
        heartbeat.

        Args:
            key: the peer's current key, which has signed the heartbeat; None: an operator sent it.
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
