"""Builds this deployment's signed heartbeat; checks and stores the heartbeats of peers.

A replica receives the heartbeats that peers send. The timekeeper sends heartbeats, and the replies
to them contain heartbeats of peers. Reference: features.md (Peers).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from actors.process.cached_answer import CachedAnswer
from core.errors import ErrorCode, ServiceError
from core.peers.documents import (
    check_heartbeat_bounds,
    check_signed_heartbeat,
    current_key,
    heartbeat_of,
)
from core.records.api.peers import PeerHeartbeat
from core.records.api.shape import invalid
from core.settings import Settings
from core.timestamps import iso_ms
from ledger.features.own_state import OwnIdentity, read_own_identity
from ledger.features.peers import PeerStore, RotatePeerKey, peer_row
from ledger.reads.reader import LedgerReader

HEARTBEAT_PATH: Final = "/v1/federation/peers/heartbeat"
HEARTBEAT_S: Final = 15.0


async def own_heartbeat(
    state: CachedAnswer[dict[str, Any]], reader: LedgerReader, settings: Settings, *, now_ms: int
) -> dict[str, Any]:
    """Return a signed heartbeat of this deployment.

    Raises:
        ServiceError: LEDGER_UNAVAILABLE, OVERLOADED.
    """
    own: OwnIdentity = await read_own_identity(reader, settings)
    own_state = await state.get()
    return heartbeat_of(own_state, did=own.did, key=own.key, rotations=own.rotations, now_ms=now_ms)


async def take_signed_heartbeat(
    document: Mapping[str, Any],
    heartbeat: PeerHeartbeat,
    reader: LedgerReader,
    store: PeerStore,
    commit: Callable[[RotatePeerKey], Awaitable[object]],
    *,
    now_ms: int,
) -> str:
    """Store a heartbeat that a peer has signed; return the peer's id.

    Steps: (1) check its time and signature; (2) find the peer, and check that the key is the
    peer's; (3) store a rotated key; (4) store the heartbeat if it is later than the stored one.

    Args:
        document: the heartbeat as it was received.
        heartbeat: the record parsed from `document`.
        commit: commits a command; raises if the ledger refuses it.
        now_ms: the time, Unix milliseconds.

    Raises:
        ServiceError: INVALID_REQUEST, INVALID_SIGNATURE, CONFLICT, LEDGER_UNAVAILABLE.
    """
    check_heartbeat_bounds(heartbeat)
    check_signed_heartbeat(document, heartbeat, now_ms=now_ms)  # 1
    row = await peer_row(reader, str(heartbeat.did), by="did")  # 2
    if row is None:
        detail = f"did: {heartbeat.did} is no peer of this deployment"
        raise ServiceError(ErrorCode.INVALID_SIGNATURE, detail)
    key = current_key(heartbeat, row["public_key"])
    for name, got, expected in (
        ("peerId", heartbeat.peer_id, row["id"]),
        ("region", heartbeat.region, row["region"]),
    ):
        if got not in (None, expected):
            raise invalid(name, str(got), f"{expected}, as the peer was added here")
    if key != row["public_key"]:  # 3
        former = row["public_key"]
        command_key = f"peer-key:{row['id']}:{former}:{key}"
        await commit(
            RotatePeerKey(key=command_key, peer_id=row["id"], former_key=former, public_key=key)
        )
    if not await store.store_heartbeat(row["id"], heartbeat, key=key):  # 4
        raise ServiceError(
            ErrorCode.CONFLICT,
            f"at: got {iso_ms(heartbeat.at or 0)}; the last heartbeat of {heartbeat.did} has this"
            " time or a later one, and a new one must be later",
        )
    return str(row["id"])
