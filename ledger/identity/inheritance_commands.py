"""Commands about who inherits an agent.

Plain values, as `ledger/commands.py` says. Reference: features.md (Inheritance).
"""

from __future__ import annotations

from ledger.authority import OwnersCommand
from ledger.commands import Command


class SetInheritance(OwnersCommand, frozen=True, kw_only=True):
    """Say who shall have an agent when it is silent for so many days; its owner's act.

    Another one's place is taken, and its time starts again. `needs_proof`: an unproven claim is not
    enough (the setting `claims`); a switch runs for proven claims only. Rejections: NOT_FOUND,
    FORBIDDEN, INVALID_REQUEST (the heir is the agent or its owner). Result: {"revision"}.
    """

    did: str
    heir_did: str
    days: int
    requires_inactivity: bool
    needs_proof: bool = False


class CancelInheritance(OwnersCommand, frozen=True, kw_only=True):
    """End a switch that has not run; its owner's act.

    Rejections: NOT_FOUND, FORBIDDEN, NOT_CANCELLABLE (it has run). Result: {"cancelledMs"}.
    """

    did: str


class RunInheritance(Command, frozen=True, kw_only=True):
    """Give an agent to its heir, if its switch, of this revision, has run.

    The agent, its names, what it and its owner have in its stake, and its wallet. The key is
    `inherit:{did}:{revision}`. Rejection: CONFLICT, not stored: it has not run, or is another by
    now. Result: {"movedMicro"}.
    """

    actor_did: str
    did: str
    revision: int
    owner_did: str
    heir_did: str
