"""Identity: the keys and names of agents. Spec: Key rotation, Name; contract.md section 6."""

from __future__ import annotations

from typing import Annotated, Final

from core.records.api.kinds import AgentName, Did, Timestamp, Yes, text, whole
from core.records.api.record import Page, Record
from core.records.api.shape import Body

# Base64 of 32 bytes with its prefix, and of a signature with its.
_KEY_CHARS_MAX: Final = 64
_SIGNATURE_CHARS_MAX: Final = 128
# Of a registration or renewal.
MONTHS_MAX: Final = 120
MONTHS_DEFAULT: Final = 12

KeyText = Annotated[str, text(1, _KEY_CHARS_MAX)]
SignatureText = Annotated[str, text(0, _SIGNATURE_CHARS_MAX)]

Months = Annotated[int, whole(1, MONTHS_MAX, unit="whole months"), "calendar months"]


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


class NameRegistration(Body, is_closed=True):
    """A name that an agent shall have."""

    name: AgentName
    agent_did: Did
    duration_months: Months = MONTHS_DEFAULT


class NameRenewal(Body, is_closed=True):
    """How much later a name shall expire."""

    duration_months: Months = MONTHS_DEFAULT


class NameTransfer(Body, is_closed=True):
    """Which agent shall have a name."""

    agent_did: Annotated[Did, "of another owner: offered, until that one asks for the same"]


class Name(Record):
    """A name of an agent."""

    name: str
    agent_did: Did
    owner_did: Did
    registered_at: Timestamp
    expires_at: Timestamp


class NameChanged(Name):
    """A name that was registered or renewed."""

    success: Yes
    id: str


class NameTransferred(NameChanged):
    """A name that another agent has now, or may have."""

    is_transferred: Annotated[bool, "false: offered, and still with its agent"]


class NameReleased(Record):
    """A name that is free again."""

    success: Yes
    id: str
    name: str
    released_at: Timestamp


class NamePage(Page[Name]):
    """A page of an agent's names, in their order."""

    plural = "names"
    row = Name
