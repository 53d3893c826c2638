"""Identity: the keys of agents. Spec: Key rotation; contract.md section 6."""

from __future__ import annotations

from typing import Annotated, Final

from core.records.api.kinds import Did, Timestamp, Yes, text
from core.records.api.record import Page, Record
from core.records.api.shape import Body

# Base64 of 32 bytes with its prefix, and of a signature with its.
_KEY_CHARS_MAX: Final = 64
_SIGNATURE_CHARS_MAX: Final = 128

KeyText = Annotated[str, text(1, _KEY_CHARS_MAX)]
SignatureText = Annotated[str, text(0, _SIGNATURE_CHARS_MAX)]


class KeyRotation(Body, is_closed=True):
    """Which key shall take the place of an agent's current one, and what that one says to it."""

    agent_did: Did
    new_public_key: Annotated[KeyText, "base64 of 32 bytes"]
    rotation_proof: Annotated[
        SignatureText,
        "base64 Ed25519 by the current key over `rotate:{agentDid}:{newPublicKey}`",
    ]


class AgentKeyRotated(Record):
    """An agent's key that was replaced."""

    success: Yes
    id: Did
    agent_did: Did
    key_id: str
    public_key: Annotated[str, "the current one, base64"]
    valid_from: Timestamp
    former_valid_until: Annotated[Timestamp, "of the key before it"]


class AgentKey(Record):
    """A key that an agent has or had."""

    key_id: str
    public_key: str
    valid_from: Timestamp
    valid_until: Annotated[Timestamp | None, "null: it is the current one"]


class KeyHistory(Page[AgentKey]):
    """A page of an agent's keys, the current one first."""

    plural = "keyHistory"
    row = AgentKey
