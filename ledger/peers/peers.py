"""Commands about peers and their plans: additions, removals and rotations of keys.

Reference: features.md (Peers).
"""

from __future__ import annotations

from typing import Any, Final

from core.errors import ErrorCode
from core.peers.documents import clearing_did, deployment_did
from core.records.audit import AuditEventType
from ledger.authority import AuthorizedCommand
from ledger.commands import Command
from ledger.connections.connecting import fetch
from ledger.tables.peer_tables import PEERS, REMOVED_PEERS, ROTATED_PEER_KEYS
from ledger.writer.batch import Batch, Refusal, Result, conflict, invalid
from ledger.writer.command_kind import Connection, plans
from ledger.writer.read_set import ReadSet

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
    """Add a peer, also one that was removed before.

    Rejections: CONFLICT (the id or the DID is in use here), INVALID_REQUEST (this deployment
    itself), QUOTA_EXCEEDED (`PEERS_MAX`). Result: {"id": str}.
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

    Rejections: CONFLICT (the peer was removed, or `former_key` is not its key any more).
    """

    peer_id: str
    former_key: str
    public_key: str


async def _load(
    connection: Connection, command: AddPeer | RemovePeer | RotatePeerKey, read_set: ReadSet
) -> tuple[Any, ...]:
    """Return the peers with the id or the DID; for an addition also other uses of the DID."""
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
    """Return the row of a peer that was not removed.

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
