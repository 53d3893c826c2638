"""Commands about the recovery of agents' keys.

Plain values, as `ledger/commands.py` says. As with rotations, signatures are verified before a
command is made, and the writer compares the keys. Reference: features.md (Recovery).
"""

from __future__ import annotations

from ledger.authority import OwnersCommand
from ledger.commands import Command


class SetGuardians(OwnersCommand, frozen=True, kw_only=True):
    """Say who may replace an agent's key when it is lost; the agent's act or its owner's.

    Rejections: NOT_FOUND, FORBIDDEN. No result.
    """

    did: str
    guardians: tuple[str, ...]
    threshold: int
    custodian_did: str | None
    delay_hours: int


class RequestRecovery(OwnersCommand, frozen=True, kw_only=True):
    """Ask for an agent's key to be replaced, or add signatures to such a request.

    `signers`: (DID, key) of those whose signatures were verified, with the key by which. When they
    are enough the key is replaced at once, or the delay begins. Rejections: NOT_FOUND, FORBIDDEN
    (neither named nor signed by one who is), CONFLICT (no guardians, another kind, over already,
    too many open, the key stands in the history, a signer's key has changed). Result: {"status"}.
    """

    recovery_id: str
    did: str
    recovery_type: str
    new_key: str
    recovery_address: str | None
    signers: tuple[tuple[str, str], ...]


class CancelRecovery(OwnersCommand, frozen=True, kw_only=True):
    """End a request; the agent's act, its owner's, or that of the one who made it.

    `proven_key`: the agent's current key, by which a signature over it was verified. Rejections:
    NOT_FOUND, FORBIDDEN, CONFLICT, NOT_CANCELLABLE (it is over). Result: {"cancelledMs"}.
    """

    recovery_id: str
    did: str
    proven_key: str | None


class CompleteRecovery(Command, frozen=True, kw_only=True):
    """Replace an agent's key when the delay of a request is over. The key is `recover:{id}`.

    Rejection: CONFLICT, not stored: it does not wait, or not long enough. Result: {"keyNumber"}.
    """

    actor_did: str
    recovery_id: str
    did: str
    new_key: str
