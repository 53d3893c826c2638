"""Recovery of an agent's lost or stolen key: who may replace it, and what they sign.

Three kinds: so many of the agent's guardians sign; its custodian signs; one of them starts a delay
in which the current key can cancel. A request is told by the agent and its new key, of which its id
is made: so both forms of the message name one request, and no signature is worth anything for
another. Pure; verifies no signature by itself. Spec: Recovery request; contract.md section 6
(Recovery). Decision 0233.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# Of every recovery's id.
_NAMESPACE: Final = uuid.UUID("5f0b9b56-5a0f-4f0e-9d5e-6f2f3c1a7b42")
GUARDIANS_MAX: Final = 20
OPEN_MAX: Final = 5
HOUR_MS: Final = 3_600_000


class RecoveryType(StrEnum):
    """By whose word a key is replaced."""

    SOCIAL = "social_recovery"
    CUSTODIAN = "custodian_recovery"
    TIME_LOCK = "time_lock_recovery"


@dataclass(frozen=True, slots=True)
class Guardians:
    """Who may replace an agent's key: `threshold` of `guardians`, or the custodian."""

    guardians: tuple[str, ...]
    threshold: int
    custodian_did: str | None
    delay_hours: int

    @property
    def signers(self) -> frozenset[str]:
        """Everyone whose signature counts for anything."""
        custodian = () if self.custodian_did is None else (self.custodian_did,)
        return frozenset((*self.guardians, *custodian))

    def is_agreed(
        self, recovery_type: RecoveryType, signed: Collection[str], *, is_owners: bool
    ) -> bool:
        """Say whether a key is replaced by these signatures, or its delay begins.

        Args:
            signed: whose signatures were verified.
            is_owners: the owner itself asks; it can begin a delay without a signature.
        """
        match recovery_type:
            case RecoveryType.SOCIAL:
                agreed = len(set(self.guardians) & set(signed))
                return 0 < self.threshold <= agreed
            case RecoveryType.CUSTODIAN:
                return self.custodian_did is not None and self.custodian_did in signed
            case RecoveryType.TIME_LOCK:
                return is_owners or bool(self.signers & set(signed))


def recovery_id(did: str, new_key: str) -> str:
    """Return the id of the one request to give a DID this key.

    Args:
        new_key: base64 of 32 bytes, without a prefix.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{did}\n{new_key}"))


def recovery_messages(request_id: str, did: str, sent_key: str) -> tuple[bytes, bytes]:
    """Return what a guardian or custodian may sign: with the request's id, or what it is made of.

    Args:
        sent_key: the text of the new key, exactly as the request holds it.
    """
    return (
        f"recover:{request_id}:{did}:{sent_key}".encode(),
        f"recover:{did}:{sent_key}".encode(),
    )


def cancel_message(request_id: str) -> bytes:
    """Return what the current key signs to cancel a request."""
    return f"cancel:{request_id}".encode()
