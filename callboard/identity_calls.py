"""Requests about identity, as data like those of `calls.py`: the keys of agents.

Spec: Key rotation; contract.md section 6.
"""

from __future__ import annotations

import base64

from nacl.signing import SigningKey

from callboard.calls import Steps, _get, _post, _segment
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
