"""Peers as they are stored, with the newest heartbeat of each.

Reads like those of `reader.py`, over the same pool. Reference: features.md (Peers).
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sql
from msgspec.structs import replace
from sqlalchemy.dialects.postgresql import JSON

from core.json_text import write_json
from core.peers.routing import KnownPeer, PeerOffer
from ledger.reads.agent_pages import IS_REVOKED
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import peer, peer_live

# Ages are of the database's clock, on both sides.
_NOW_MS: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
# Which offers a peer may make here changes with its heartbeats and with its row.
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
# What a peer says of a DID that is registered here does not count.
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
    """Reads all peers again and again, and the offers of each once for each of its heartbeats."""

    def __init__(self, reader: LedgerReader) -> None:
        self._reader = reader
        # By the peer's id, with the version of its offers.
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
    """Return the DIDs of all peers that were ever added, removed ones too."""
    return frozenset(row["did"] for row in await reader.rows(_DIDS))


async def present_peers(reader: LedgerReader) -> list[RowDict]:
    """Return all peers that were not removed, without their offers."""
    return await reader.rows(_WITHOUT_OFFERS)


async def peer_page(
    reader: LedgerReader, region: str | None, *, limit: int, offset: int, after_id: str | None
) -> list[RowDict]:
    """Return peers that were not removed, in the order of their ids.

    Args:
        region: only those of this region; None: of all.
        after_id: the last id of the previous page.
    """
    return await reader.listed(
        _ROWS.where(_IS_PRESENT), "id", after_id, limit=limit, offset=offset, region=region
    )


async def peer_row(
    reader: LedgerReader, value: str, *, by: str = "id", is_removed_too: bool = False
) -> RowDict | None:
    """Return a peer with its newest heartbeat; None: there is none.

    Args:
        by: the column that has the value, `id` or `did`.
        is_removed_too: also if the peer was removed.
    """
    query = _ROWS.where(peer.c[by] == value)
    return await reader.row(query if is_removed_too else query.where(_IS_PRESENT))


async def is_agent_revoked(reader: LedgerReader, peer_id: str, did: str) -> bool:
    """Say whether an agent that is reached through a peer is revoked here or at that peer.

    What a peer says of a DID that is registered here does not count.
    """
    (row,) = await reader.rows(_IS_AGENT_REVOKED, {"peer_id": peer_id, "did": did})
    return bool(row["is_revoked"])


def known_peer(row: RowDict) -> KnownPeer:
    """Return the peer of a row, with the offers that it may make here."""
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
