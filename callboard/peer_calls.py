"""Requests about peers, as data like those of `calls.py`.

Reference: features.md (Peers, Routing between regions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from callboard.calls import Call, Steps, _one, _segment, sending


@sending("POST", "/v1/federation/peers")
def add_peer(
    endpoint: str,
    region: str,
    public_key: str,
    *,
    peer_id: str | None = None,
    did: str | None = None,
    capabilities: Sequence[str] | None = None,
    idempotency_key: str | None = None,
) -> None:
    """Add a peer; it gets work once it has signed a heartbeat with its key.

    Args:
        endpoint: base URL of its API.
        public_key: its current key, base64.
        did: of the peer; needed if it has rotated its key.
        capabilities: the capabilities that it may offer here; None: all.
    """


def remove_peer(peer_id: str) -> Steps:
    """Remove a peer; its clearing account and its statements stay."""
    done = {"success": True, "id": peer_id}
    return _one(Call("DELETE", f"/v1/federation/peers/{_segment(peer_id)}", done=done))


def peer_heartbeat(heartbeat: Mapping[str, Any]) -> Steps:
    """Send a heartbeat: signed by a peer, or by an operator on behalf of a peer."""
    # A signed heartbeat that was stored is refused when it is repeated.
    path = "/v1/federation/peers/heartbeat"
    return _one(Call("POST", path, body=dict(heartbeat), repeatable="signature" not in heartbeat))


@sending("POST", "/v1/federation/peers/{peer_id}/settle", amount_credits="amount")
def settle_peer(peer_id: str, *, amount_credits: float | str | None = None) -> None:
    """Move credits from a peer's clearing account to the caller; None: the whole balance."""
