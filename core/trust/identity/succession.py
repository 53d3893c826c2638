"""Who may take an agent over: those who recover its key, and its heir. Pure.

Reference: features.md (Recovery, Inheritance). Decision agent-identity.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

# Recovery of an agent's lost or stolen key: who may replace it, and what they sign. Three kinds:
# so many of the agent's guardians sign; its custodian signs; one of them starts a delay in which
# the current key can cancel. Guardians that the agent's own key has replaced count on for their
# delay, so that a stolen key shuts none of them out. A request is told by the agent and its new
# key, of which its id is made: so both forms of the message name one request, and no signature is
# worth anything for another. Pure; verifies no signature by itself.

# Of every recovery's id.
_NAMESPACE: Final = uuid.UUID("5f0b9b56-5a0f-4f0e-9d5e-6f2f3c1a7b42")
OPEN_MAX: Final = 5
# Sets of guardians that count on, at most.
REPLACED_MAX: Final = 5
HOUR_MS: Final = 3_600_000


class RecoveryType(StrEnum):
    """By whose word a key is replaced."""

    SOCIAL = "social_recovery"
    CUSTODIAN = "custodian_recovery"
    TIME_LOCK = "time_lock_recovery"


@dataclass(frozen=True, slots=True)
class Guardians:
    """Who may replace an agent's key: `threshold` of `guardians`, or the custodian.

    `number`: of this set among those of the agent. `replaced_ms`: when another took its place.
    """

    guardians: tuple[str, ...]
    threshold: int
    custodian_did: str | None
    delay_hours: int
    number: int = 1
    replaced_ms: int | None = None

    @property
    def signers(self) -> frozenset[str]:
        """Everyone whose signature counts for anything."""
        custodian = () if self.custodian_did is None else (self.custodian_did,)
        return frozenset((*self.guardians, *custodian))

    def is_agreed(self, recovery_type: RecoveryType, signed: Collection[str]) -> bool:
        """Say whether a key is replaced by these signatures, or its delay begins.

        Args:
            signed: whose signatures were verified.
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
        """Say whether another set names the same, on the same terms."""
        return replace(other, number=self.number, replaced_ms=self.replaced_ms) == self


@dataclass(frozen=True, slots=True)
class GuardianSets:
    """All who may replace an agent's key now.

    `owner_did`: the agent's owner as they were named; under another they are void. `replaced`: sets
    that count on, the earliest first. `struck_number`: sets up to this one were struck out.
    """

    owner_did: str
    current: Guardians
    replaced: tuple[Guardians, ...] = ()
    struck_number: int = 0

    @property
    def signers(self) -> frozenset[str]:
        """Everyone whose signature counts for anything."""
        return self.current.signers.union(*(one.signers for one in self.replaced))

    def agreed(self, recovery_type: RecoveryType, signed: Collection[str]) -> Guardians | None:
        """Return the set of which these signatures are enough, the earliest of several."""
        for one in (*self.replaced, self.current):
            if one.is_agreed(recovery_type, signed):
                return one
        return None

    def with_next(self, named: Guardians, now_ms: int, *, counts_on: bool) -> GuardianSets:
        """Return the sets as another one leaves them that takes the place of the current.

        Args:
            named: of any number.
            now_ms: Unix time, milliseconds.
            counts_on: whether those of before do; else they are struck out.
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
        """Return the sets as a recovery by one of them leaves them.

        That one is the current one again: those who came after it were named by a key that was
        perhaps stolen.
        """
        if by.number == self.current.number:
            return self
        return replace(
            self,
            current=replace(by, number=self.current.number + 1, replaced_ms=None),
            replaced=tuple(one for one in self.replaced if one.number < by.number),
        )


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


# The dead man's switch of an agent: how much of its time has run, and what that is called. The
# time is that in which the service was ready (`ledger/features/readiness.py`), since the agent
# was last heard.

DAY_MS: Final = 86_400_000
# Of the switch's time: from then on it warns.
WARNING_PERCENT: Final = 80


class SwitchStatus(StrEnum):
    """What a reader is told: `inactive`, the switch has far to go; `warning`; `triggered`."""

    INACTIVE = "inactive"
    WARNING = "warning"
    TRIGGERED = "triggered"


def switch_status(silent_ms: int, days: int, *, is_triggered: bool) -> SwitchStatus:
    """Return the status of a switch.

    Args:
        silent_ms: how long nothing was heard.
        days: after how many of silence it runs.
        is_triggered: whether it has run.
    """
    if is_triggered:
        return SwitchStatus.TRIGGERED
    if silent_ms * 100 >= days * DAY_MS * WARNING_PERCENT:
        return SwitchStatus.WARNING
    return SwitchStatus.INACTIVE
