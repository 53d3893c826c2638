"""Identity: keys, names and heirs of agents, and the recovery of lost keys.

Spec: Key rotation, Name, Inheritance, Recovery request; contract.md section 6.
"""

from __future__ import annotations

from typing import Annotated, Final

from core.records.api.kinds import (
    AgentName,
    Count,
    Did,
    LongText,
    Timestamp,
    Uuid,
    Yes,
    text,
    whole,
    words,
)
from core.records.api.record import Page, Record
from core.records.api.shape import Body, Maybe

# Base64 of 32 bytes with its prefix, and of a signature with its.
_KEY_CHARS_MAX: Final = 64
_SIGNATURE_CHARS_MAX: Final = 128
# Of a registration or renewal.
MONTHS_MAX: Final = 120
MONTHS_DEFAULT: Final = 12
RECOVERY_TYPES: Final = ("social_recovery", "custodian_recovery", "time_lock_recovery")
RECOVERY_STATUSES: Final = ("pending", "waiting", "completed", "cancelled")
GUARDIANS_MAX: Final = 20
# A year.
DELAY_HOURS_MAX: Final = 8_760
DELAY_HOURS_DEFAULT: Final = 72
SWITCH_DAYS_MAX: Final = 3_650
SWITCH_STATUSES: Final = ("inactive", "warning", "triggered")

KeyText = Annotated[str, text(1, _KEY_CHARS_MAX)]
SignatureText = Annotated[str, text(0, _SIGNATURE_CHARS_MAX)]

Months = Annotated[int, whole(1, MONTHS_MAX, unit="whole months"), "calendar months"]


class AgentKeyRotation(Body, is_closed=True):
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


class SwitchConditions(Body, is_closed=True):
    """What else must hold before an agent goes to its heir."""

    requires_inactivity: Annotated[bool, "the owner's own acts start the time again, too"] = False


class InheritanceSetting(Body, is_closed=True):
    """Who shall have an agent that sends no heartbeat for so many days."""

    agent_did: Did
    inherits_to_did: Did
    dead_man_switch_days: Annotated[int, whole(1, SWITCH_DAYS_MAX, unit="whole days")]
    conditions: Maybe[SwitchConditions] = None


class Conditions(Record):
    """What else must hold before an agent goes to its heir."""

    requires_inactivity: bool


class Inheritance(Record):
    """Who has an agent when it falls silent, and how far that is."""

    agent_did: Did
    owner_did: Annotated[Did, "who has set it"]
    inherits_to_did: Did
    dead_man_switch_days: Count
    conditions: Conditions
    revision: Count
    status: Annotated[str, words(SWITCH_STATUSES)]
    set_at: Timestamp
    last_heartbeat_at: Timestamp | None
    triggers_at: Annotated[
        Timestamp | None, "if nothing is heard and the service stays ready; null: it has"
    ]
    triggered_at: Timestamp | None


class InheritanceSet(Inheritance):
    """A heir that was named."""

    success: Yes
    id: Did


class InheritanceCancelled(Record):
    """A heir that was struck out."""

    success: Yes
    id: Did
    agent_did: Did
    cancelled_at: Timestamp


class GuardiansSetting(Body, is_closed=True):
    """Who may replace an agent's key when it is lost."""

    guardians: Annotated[list[Did], "each with a key here, or a `did:key`; at most 20"]
    threshold: Annotated[
        int, whole(0, GUARDIANS_MAX), "how many of them must sign; 0 without guardians"
    ]
    custodian_did: Annotated[Maybe[Did], "may replace the key alone"] = None
    delay_hours: Annotated[int, whole(1, DELAY_HOURS_MAX, unit="whole hours"), "of a time lock"] = (
        DELAY_HOURS_DEFAULT
    )


class ReplacedGuardians(Record):
    """Guardians that the agent's own key has replaced; they count on for their `delayHours`, in
    which the service was ready."""

    guardians: list[str]
    threshold: Count
    custodian_did: Did | None
    delay_hours: Count
    replaced_at: Timestamp


class GuardianSet(Record):
    """Who may replace an agent's key."""

    agent_did: Did
    guardians: list[str]
    threshold: Count
    custodian_did: Did | None
    delay_hours: Count
    set_at: Timestamp
    replaced: Annotated[list[ReplacedGuardians], "who counts on, the earliest first"]


class GuardiansSet(GuardianSet):
    """Guardians that were named."""

    success: Yes
    id: Did


class GuardianSignature(Body, is_closed=True):
    """What a guardian or custodian says to a recovery."""

    did: Did
    signature: Annotated[
        SignatureText,
        "base64 Ed25519 over `recover:{id}:{agentDid}:{newPublicKey}`, or without `{id}:`",
    ]


class RecoveryProof(Body, is_closed=True):
    """Signatures for a recovery."""

    signatures: Annotated[list[GuardianSignature], "at most 21"]


class RecoveryRequest(Body, is_closed=True):
    """An agent's key shall be replaced without the current one's word."""

    agent_did: Did
    recovery_type: Annotated[str, words(RECOVERY_TYPES)]
    new_public_key: Annotated[KeyText, "base64 of 32 bytes"]
    recovery_address: Annotated[Maybe[LongText], "where the one who asks is reached"] = None
    proof: Maybe[RecoveryProof] = None


class RecoveryCancelling(Body, is_closed=True):
    """Why a recovery may be cancelled by one who is no party of it."""

    signature: Annotated[
        Maybe[SignatureText], "base64 Ed25519 by the agent's current key over `cancel:{id}`"
    ] = None


class Recovery(Record):
    """A request to replace an agent's key. It has one for each new key, ever."""

    id: Uuid
    recovery_id: Uuid
    agent_did: Did
    recovery_type: Annotated[str, words(RECOVERY_TYPES)]
    new_public_key: str
    recovery_address: str | None
    requested_by_did: Did
    signers: Annotated[list[str], "whose signatures were verified"]
    status: Annotated[str, words(RECOVERY_STATUSES)]
    message: Annotated[str, "what guardians sign"]
    created_at: Timestamp
    completes_at: Annotated[
        Timestamp | None, "of a time lock, while the service stays ready; null: of none that waits"
    ]
    ended_at: Timestamp | None


class RecoveryMade(Recovery):
    """A request that was made, signed or cancelled."""

    success: Yes
