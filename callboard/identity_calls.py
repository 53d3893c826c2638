"""Requests about identity, as data like those of `calls.py`: the keys and names of agents.

Spec: Key rotation, Name; contract.md section 6.
"""

from __future__ import annotations

import base64

from nacl.signing import SigningKey

from callboard.calls import Call, Steps, _get, _one, _post, _segment
from core.trust.agent_keys import rotation_message
from core.trust.signatures import key_bytes


def rotate_agent_key(did: str, new_public_key: str, *, private_key: str) -> Steps:
    """Replace an agent's key by another; the current one signs for it.

    Args:
        new_public_key: base64 of 32 bytes.
        private_key: the current one, base64 of 32 bytes; it does not travel.
    """
    signed = SigningKey(key_bytes(private_key)).sign(rotation_message(did, new_public_key))
    return _post(
        "/v1/trust/rotate-key",
        agentDid=did,
        newPublicKey=new_public_key,
        rotationProof=base64.b64encode(signed.signature).decode(),
    )


def key_history(
    did: str, *, limit: int | None = None, offset: int | None = None, cursor: str | None = None
) -> Steps:
    """List the keys that an agent has and had, the current one first."""
    return _get(f"/v1/trust/key-history/{_segment(did)}", limit=limit, offset=offset, cursor=cursor)


def register_name(name: str, agent_did: str, *, months: int | None = None) -> Steps:
    """Register a name for an agent of one's own.

    Args:
        months: calendar months, 1 to 120; None: 12.
    """
    return _post("/v1/identity/names", name=name, agentDid=agent_did, durationMonths=months)


def names_of(
    did: str, *, limit: int | None = None, offset: int | None = None, cursor: str | None = None
) -> Steps:
    """List the names of an agent."""
    path = f"/v1/agents/{_segment(did)}/names"
    return _get(path, limit=limit, offset=offset, cursor=cursor)


def renew_name(name: str, *, months: int | None = None) -> Steps:
    """Let a name expire so many calendar months later; None: 12."""
    return _post(f"/v1/identity/names/{_segment(name)}/renew", durationMonths=months)


def transfer_name(name: str, agent_did: str) -> Steps:
    """Give a name to another agent, offer it to one of another owner, or take what was offered."""
    return _post(f"/v1/identity/names/{_segment(name)}/transfer", agentDid=agent_did)


def release_name(name: str) -> Steps:
    """End a name before its time."""
    done = {"success": True, "id": name, "name": name}
    return _one(Call("DELETE", f"/v1/identity/names/{_segment(name)}", done=done))
