"""Identity: keys, names and heirs of agents, and the recovery of lost keys.

Reference: features.md (Key rotation, Names, Inheritance, Recovery).
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
    text,
    whole,
    words,
)
from core.records.api.record import Done, Page, Record
from core.records.api.shape import Body, Maybe

# The size of a key or a signature in base64, with a prefix.
_KEY_CHARS_MAX: Final = 64
_SIGNATURE_CHARS_MAX: Final = 128
# The months of a registration or a renewal.
MONTHS_MAX: Final = 120
MONTHS_DEFAULT: Final = 12
RECOVERY_TYPES: Final = ("social_recovery", "custodian_recovery", "time_lock_recovery")
RECOVERY_STATUSES: Final = ("pending", "waiting", "completed", "cancelled")
GUARDIANS_MAX: Final = 20
# One year.
DELAY_HOURS_MAX: Final = 8_760
DELAY_HOURS_DEFAULT: Final = 72
SWITCH_DAYS_MAX: Final = 3_650
SWITCH_STATUSES: Final = ("inactive", "warning", "triggered")

KeyText = Annotated[str, text(1, _KEY_CHARS_MAX)]
SignatureText = Annotated[str, text(0, _SIGNATURE_CHARS_MAX)]

Months = Annotated[int, whole(1, MONTHS_MAX, unit="whole months"), "calendar months"]


class AgentKeyRotation(Body, is_closed=True):
    """A new public key for an agent, with a proof signed by the current key."""

    agent_did: Did
    new_public_key: Annotated[KeyText, "New public key, base64 of 32 bytes."]
    rotation_proof: Annotated[
        SignatureText,
        "Base64 Ed25519 signature by the current key over `rotate:{agentDid}:{newPublicKey}`.",
    ]


class AgentKeyRotated(Done):
    """An agent's rotated key."""

    id: Annotated[Did, "DID of the agent."]
    agent_did: Did
    key_id: str
    public_key: Annotated[str, "Current public key, base64."]
    valid_from: Annotated[Timestamp, "Time from which the key is valid."]
    former_valid_until: Annotated[Timestamp, "Time until which the previous key is valid."]


class AgentKey(Record):
    """One key in the key history of an agent."""

    key_id: str
    public_key: Annotated[str, "Public key, base64."]
    valid_from: Annotated[Timestamp, "Time from which the key was valid."]
    valid_until: Annotated[
        Timestamp | None, "Time until which it was valid; null for the current key."
    ]


class KeyHistory(Page[AgentKey], plural="keyHistory"):
    """A page of an agent's keys, the current one first."""


class NameRegistration(Body, is_closed=True):
    """A name for an agent."""

    name: Annotated[AgentName, "The name; stored in lower case."]
    agent_did: Did
    duration_months: Annotated[Months, "Calendar months until the name expires."] = MONTHS_DEFAULT


class NameRenewal(Body, is_closed=True):
    """A later expiry of a name."""

    duration_months: Annotated[Months, "Calendar months that are added."] = MONTHS_DEFAULT


class NameTransfer(Body, is_closed=True):
    """The agent that receives a name."""

    agent_did: Annotated[
        Did,
        "The receiving agent. An agent of another owner must ask for the same transfer to"
        " accept it.",
    ]


class Name(Record):
    """A name of an agent."""

    name: Annotated[str, "The name, in lower case."]
    agent_did: Did
    owner_did: Annotated[Did, "DID of the agent's owner."]
    registered_at: Annotated[Timestamp, "Time of the registration."]
    expires_at: Annotated[Timestamp, "Time of expiry."]


class NameChanged(Name, Done):
    """A name that was registered or renewed."""

    id: Annotated[str, "The name."]


class NameTransferred(NameChanged):
    """A name that was transferred or offered."""

    is_transferred: Annotated[bool, "false: offered to another owner's agent, not transferred yet."]


class NameReleased(Done):
    """A name that was released."""

    id: Annotated[str, "The name."]
    name: Annotated[str, "The name."]
    released_at: Annotated[Timestamp, "Time at which the name was released."]


class NamePage(Page[Name], plural="names"):
    """A page of an agent's names, in alphabetical order."""


class SwitchConditions(Body, is_closed=True):
    """Conditions of an inheritance besides missing heartbeats."""

    requires_inactivity: Annotated[bool, "Whether calls by the owner restart the period too."] = (
        False
    )


class InheritanceSetting(Body, is_closed=True):
    """The heir of an agent, and the days without a heartbeat until it inherits."""

    agent_did: Did
    inherits_to_did: Did
    dead_man_switch_days: Annotated[int, whole(1, SWITCH_DAYS_MAX, unit="whole days")]
    conditions: Annotated[Maybe[SwitchConditions], "Further conditions."] = None


class Conditions(Record):
    """Conditions of an inheritance besides missing heartbeats."""

    requires_inactivity: Annotated[bool, "Whether calls by the owner restart the period too."]


class Inheritance(Record):
    """Heir of an agent, and the state of its dead man's switch."""

    agent_did: Did
    owner_did: Annotated[Did, "DID of the owner who named the heir."]
    inherits_to_did: Did
    dead_man_switch_days: Count
    conditions: Annotated[Conditions, "Further conditions."]
    revision: Annotated[Count, "Number of this setting; each new setting adds 1."]
    status: Annotated[
        str,
        words(SWITCH_STATUSES),
        "`warning` from 80 % of the period on; `triggered` after the transfer.",
    ]
    set_at: Timestamp
    last_heartbeat_at: Annotated[Timestamp | None, "Time of the last heartbeat; null: none."]
    triggers_at: Annotated[
        Timestamp | None, "Time of the transfer if no heartbeat comes; null after the transfer."
    ]
    triggered_at: Annotated[Timestamp | None, "Time of the transfer; null before it."]


class InheritanceSet(Inheritance, Done):
    """An heir that was named."""

    id: Annotated[Did, "DID of the agent."]


class InheritanceCancelled(Done):
    """An inheritance that was cancelled."""

    id: Annotated[Did, "DID of the agent."]
    agent_did: Did
    cancelled_at: Annotated[Timestamp, "Time of the cancellation."]


class GuardiansSetting(Body, is_closed=True):
    """The guardians that can replace an agent's key when it is lost."""

    guardians: Annotated[list[Did], "DIDs with a registered key, or `did:key` DIDs; at most 20."]
    threshold: Annotated[
        int, whole(0, GUARDIANS_MAX), "Number of guardians that must sign; 0 without guardians."
    ]
    custodian_did: Annotated[Maybe[Did], "DID that can replace the key alone."] = None
    delay_hours: Annotated[
        int,
        whole(1, DELAY_HOURS_MAX, unit="whole hours"),
        "Hours that a time lock waits before it replaces the key.",
    ] = DELAY_HOURS_DEFAULT


class ReplacedGuardians(Record):
    """A replaced set of guardians. It stays valid for its own `delayHours` of service time."""

    guardians: list[str]
    threshold: Count
    custodian_did: Did | None
    delay_hours: Count
    replaced_at: Annotated[Timestamp, "Time of the replacement."]


class GuardianSet(Record):
    """The guardians of an agent's key."""

    agent_did: Did
    guardians: list[str]
    threshold: Count
    custodian_did: Did | None
    delay_hours: Count
    set_at: Timestamp
    replaced: Annotated[
        list[ReplacedGuardians], "Replaced sets that are still valid, earliest first."
    ]


class GuardiansSet(GuardianSet, Done):
    """Guardians that were set."""

    id: Annotated[Did, "DID of the agent."]


class GuardianSignature(Body, is_closed=True):
    """Signature of a guardian or of the custodian for a recovery."""

    did: Annotated[Did, "DID of the guardian or custodian."]
    signature: Annotated[
        SignatureText,
        "Base64 Ed25519 signature over `recover:{id}:{agentDid}:{newPublicKey}`; `{id}:` may be"
        " left out.",
    ]


class RecoveryProof(Body, is_closed=True):
    """Signatures for a recovery."""

    signatures: Annotated[list[GuardianSignature], "At most 21 signatures, one per DID."]


class RecoveryRequest(Body, is_closed=True):
    """A request to replace an agent's key without the current key."""

    agent_did: Did
    recovery_type: Annotated[str, words(RECOVERY_TYPES), "Kind of recovery."]
    new_public_key: Annotated[KeyText, "New public key, base64 of 32 bytes."]
    recovery_address: Annotated[
        Maybe[LongText], "Contact address of the caller, for the guardians."
    ] = None
    proof: Annotated[
        Maybe[RecoveryProof], "Signatures; further ones are added by repeating the request."
    ] = None


class RecoveryCancelling(Body, is_closed=True):
    """Proof for cancelling a recovery. Parties of the recovery need none."""

    signature: Annotated[
        Maybe[SignatureText],
        "Base64 Ed25519 signature by the agent's current key over `cancel:{id}`.",
    ] = None


class Recovery(Record):
    """A request to replace an agent's key. Each new key has one request."""

    id: Annotated[Uuid, "Id of the request."]
    recovery_id: Annotated[Uuid, "Id of the request."]
    agent_did: Did
    recovery_type: Annotated[str, words(RECOVERY_TYPES), "Kind of recovery."]
    new_public_key: Annotated[str, "New public key, base64."]
    recovery_address: Annotated[str | None, "Contact address of the caller; null without one."]
    requested_by_did: Annotated[Did, "DID of the caller who made the request."]
    signers: Annotated[list[str], "DIDs whose signatures were verified."]
    status: Annotated[
        str, words(RECOVERY_STATUSES), "State of the request; `waiting` while a time lock runs."
    ]
    message: Annotated[str, "The text that guardians sign."]
    created_at: Timestamp
    completes_at: Annotated[
        Timestamp | None, "Time at which the time lock ends; null when no time lock runs."
    ]
    ended_at: Annotated[Timestamp | None, "Time of completion or cancellation; null before that."]


class RecoveryMade(Recovery, Done):
    """A request that was made, signed or cancelled."""
