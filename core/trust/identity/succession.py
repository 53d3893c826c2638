"""The recovery of an agent's key by guardians, and the inheritance of an agent by its heir. Pure.

Reference: features.md (Recovery, Inheritance). Decision agent-identity.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

# A recovery replaces an agent's lost or stolen key. There are three kinds: a threshold of the
# agent's guardians sign; the custodian signs; or one of them signs and a delay starts, during which
# the current key can cancel the recovery. If the agent's key replaces the guardians, the previous
# guardians stay valid for their delay, so that a thief of the key cannot exclude them. The id of a
# request is computed from the agent's DID and the new key. Both forms of the signed message
# therefore name one request, and a signature is not valid for any other request. This file verifies
# no signatures.

# The UUID namespace of the ids of recoveries.
_NAMESPACE: Final = uuid.UUID("5f0b9b56-5a0f-4f0e-9d5e-6f2f3c1a7b42")
OPEN_MAX: Final = 5
# The most replaced sets of guardians that stay valid.
REPLACED_MAX: Final = 5
HOUR_MS: Final = 3_600_000


class RecoveryType(StrEnum):
    """The kind of a recovery: whose signatures replace the key."""

    SOCIAL = "social_recovery"
    CUSTODIAN = "custodian_recovery"
    TIME_LOCK = "time_lock_recovery"


@dataclass(frozen=True, slots=True)
class Guardians:
    """A set of guardians: `threshold` of `guardians`, or the custodian, may replace an agent's key.

    `delay_hours`: the delay of a time-lock recovery. `number`: the number of this set among all
    sets of the agent. `replaced_ms`: when another set replaced this set; None for the current set.
    """

    guardians: tuple[str, ...]
    threshold: int
    custodian_did: str | None
    delay_hours: int
    number: int = 1
    replaced_ms: int | None = None

    @property
    def signers(self) -> frozenset[str]:
        """The DIDs whose signatures may count in any kind of recovery."""
        custodian = () if self.custodian_did is None else (self.custodian_did,)
        return frozenset((*self.guardians, *custodian))

    def is_agreed(self, recovery_type: RecoveryType, signed: Collection[str]) -> bool:
        """Say whether these signatures are enough to replace the key, or to start the delay.

        Args:
            signed: the DIDs whose signatures were verified.
        """
        match recovery_type:
            case RecoveryType.SOCIAL:
                agreed = len(set(self.guardians) & set(signed))
                return 0 < self.threshold <= agreed
            case RecoveryType.CUSTODIAN:
                return self.custodian_did is not None and self.custodian_did in signed
            case RecoveryType.TIME_LOCK:
                return bool(self.signers & set(signed))

    def is_same(self, other: Guardians) -> bool:
        """Say whether another set has the same guardians and custodian on the same terms."""
        return replace(other, number=self.number, replaced_ms=self.replaced_ms) == self


@dataclass(frozen=True, slots=True)
class GuardianSets:
    """All sets of guardians that may replace an agent's key now.

    `owner_did`: the agent's owner when the guardians were named; the sets are void under another
    owner. `replaced`: replaced sets that are still valid, the earliest first. `struck_number`: all
    sets up to this number were invalidated.
    """

    owner_did: str
    current: Guardians
    replaced: tuple[Guardians, ...] = ()
    struck_number: int = 0

    @property
    def signers(self) -> frozenset[str]:
        """The DIDs whose signatures may count in any kind of recovery."""
        return self.current.signers.union(*(one.signers for one in self.replaced))

    def agreed(self, recovery_type: RecoveryType, signed: Collection[str]) -> Guardians | None:
        """Return the earliest set for which these signatures are enough; None if there is none."""
        for one in (*self.replaced, self.current):
            if one.is_agreed(recovery_type, signed):
                return one
        return None

    def with_next(self, named: Guardians, now_ms: int, *, counts_on: bool) -> GuardianSets:
        """Return the sets after a new set replaces the current one.

        Args:
            named: the new set; its number is ignored.
            now_ms: the current time, Unix milliseconds.
            counts_on: whether the earlier sets stay valid; otherwise they are invalidated.
        """
        if self.current.is_same(named):
            struck = self.struck_number if counts_on else self.current.number - 1
            kept = self.replaced if counts_on else ()
            return replace(self, replaced=kept, struck_number=struck)
        if not counts_on:
            following = replace(named, number=self.current.number + 1)
            return GuardianSets(self.owner_did, following, struck_number=self.current.number)
        former = (replace(self.current, replaced_ms=now_ms),) if self.current.signers else ()
        following = replace(named, number=self.current.number + 1)
        return replace(self, current=following, replaced=(*self.replaced, *former))

    def restored(self, by: Guardians) -> GuardianSets:
        """Return the sets after a recovery that one of them has approved.

        The set `by` becomes the current set again. Later sets are removed, because they were
        possibly named with a stolen key.
        """
        if by.number == self.current.number:
            return self
        return replace(
            self,
            current=replace(by, number=self.current.number + 1, replaced_ms=None),
            replaced=tuple(one for one in self.replaced if one.number < by.number),
        )


def recovery_id(did: str, new_key: str) -> str:
    """Return the id of the request to replace the key of a DID by this key.

    Args:
        new_key: base64 of 32 bytes, without a prefix.
    """
    return str(uuid.uuid5(_NAMESPACE, f"{did}\n{new_key}"))


def recovery_messages(request_id: str, did: str, sent_key: str) -> tuple[bytes, bytes]:
    """Return the two accepted messages; a guardian or custodian signs one of them.

    The first message contains the id of the request, the second one does not.

    Args:
        sent_key: the text of the new key, exactly as in the request.
    """
    return (
        f"recover:{request_id}:{did}:{sent_key}".encode(),
        f"recover:{did}:{sent_key}".encode(),
    )


def cancel_message(request_id: str) -> bytes:
    """Return the message that the current key signs to cancel a request."""
    return f"cancel:{request_id}".encode()


# An agent's dead man's switch passes the agent to its heir after a number of days without a
# heartbeat. Only time in which the service was ready counts (`ledger/features/readiness.py`).

DAY_MS: Final = 86_400_000
# The share of the switch's time after which its status is `warning`.
WARNING_PERCENT: Final = 80


class SwitchStatus(StrEnum):
    """The status of a switch. `inactive`: less than `WARNING_PERCENT` of the time has passed."""

    INACTIVE = "inactive"
    WARNING = "warning"
    TRIGGERED = "triggered"


def switch_status(silent_ms: int, days: int, *, is_triggered: bool) -> SwitchStatus:
    """Return the status of a switch.

    Args:
        silent_ms: the counted time since the last heartbeat, milliseconds.
        days: the days without a heartbeat after which the heir inherits.
        is_triggered: whether the heir has inherited.
    """
    if is_triggered:
        return SwitchStatus.TRIGGERED
    if silent_ms * 100 >= days * DAY_MS * WARNING_PERCENT:
        return SwitchStatus.WARNING
    return SwitchStatus.INACTIVE
