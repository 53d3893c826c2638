"""Requests about identity, as data like those of `calls.py`: keys, names and heirs of
agents, and the recovery of lost keys.

Reference: features.md (Key rotation, Names, Inheritance, Recovery).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from nacl.signing import SigningKey

from callboard.calls import Call, Steps, _one, _post, _segment, sending
from callboard.locating import read_seed
from core.trust.identity.agent_keys import rotation_message


def rotate_agent_key(did: str, new_public_key: str, *, private_key: str) -> Steps:
    """Replace an agent's key by another; the current one signs for it.

    Args:
        new_public_key: base64 of 32 bytes.
        private_key: the current one, base64 of 32 bytes or the path of its file; it is not sent.
    """
    signed = SigningKey(read_seed(private_key)).sign(rotation_message(did, new_public_key))
    return _post(
        "/v1/trust/rotate-key",
        agentDid=did,
        newPublicKey=new_public_key,
        rotationProof=base64.b64encode(signed.signature).decode(),
    )


@sending("POST", "/v1/identity/names", months="durationMonths")
def register_name(name: str, agent_did: str, *, months: int | None = None) -> None:
    """Register a name for an agent of one's own.

    Args:
        months: calendar months, 1 to 120; None: 12.
    """


@sending("POST", "/v1/identity/names/{name}/renew", months="durationMonths")
def renew_name(name: str, *, months: int | None = None) -> None:
    """Let a name expire so many calendar months later; None: 12."""


@sending("POST", "/v1/identity/names/{name}/transfer")
def transfer_name(name: str, agent_did: str) -> None:
    """Give a name to another agent, offer it to one of another owner, or take what was offered."""


def release_name(name: str) -> Steps:
    """End a name before its time."""
    done = {"success": True, "id": name, "name": name}
    return _one(Call("DELETE", f"/v1/identity/names/{_segment(name)}", done=done))


def set_inheritance(
    did: str, heir_did: str, days: int, *, requires_inactivity: bool = False
) -> Steps:
    """Say who shall have an agent that sends no heartbeat for so many days.

    Args:
        requires_inactivity: the owner's own acts start the time again, too.
    """
    return _post(
        "/v1/identity/inheritance",
        agentDid=did,
        inheritsToDid=heir_did,
        deadManSwitchDays=days,
        conditions={"requiresInactivity": requires_inactivity},
    )


def cancel_inheritance(did: str) -> Steps:
    """Strike an agent's heir out, before it has the agent."""
    done = {"success": True, "id": did, "agentDid": did}
    return _one(Call("DELETE", f"/v1/identity/inheritance/{_segment(did)}", done=done))


def set_guardians(
    did: str,
    guardians: Sequence[str] = (),
    threshold: int = 0,
    *,
    custodian_did: str | None = None,
    delay_hours: int = 72,
) -> Steps:
    """Say who may replace an agent's key when it is lost.

    Args:
        threshold: how many of the guardians must sign.
        custodian_did: may replace it alone.
        delay_hours: of a time lock, in which the current key can cancel.
    """
    body = {
        "guardians": list(guardians),
        "threshold": threshold,
        "delayHours": delay_hours,
        **({} if custodian_did is None else {"custodianDid": custodian_did}),
    }
    return _one(Call("PUT", f"/v1/identity/guardians/{_segment(did)}", body=body))


def request_recovery(
    did: str,
    recovery_type: str,
    new_public_key: str,
    *,
    recovery_address: str | None = None,
    signatures: Mapping[str, str] | None = None,
) -> Steps:
    """Ask for an agent's key to be replaced, or add signatures to such a request.

    Args:
        recovery_type: `social_recovery`, `custodian_recovery` or `time_lock_recovery`.
        new_public_key: base64 of 32 bytes.
        signatures: by DID, base64 over the request's `message`.
    """
    listed = [{"did": one, "signature": text} for one, text in (signatures or {}).items()]
    return _post(
        "/v1/identity/recover",
        agentDid=did,
        recoveryType=recovery_type,
        newPublicKey=new_public_key,
        recoveryAddress=recovery_address,
        proof={"signatures": listed} if listed else None,
    )


@sending("POST", "/v1/identity/recover/{recovery_id}/cancel")
def cancel_recovery(recovery_id: str, *, signature: str | None = None) -> None:
    """Cancel a request to replace an agent's key.

    Args:
        signature: base64 by the agent's current key over `cancel:{id}`; None for a party of it.
    """
