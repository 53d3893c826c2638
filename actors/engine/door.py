"""Whether an owner takes one more workflow of a payer, beside what all payers have here.

Only publishes are refused: what was accepted goes on, however much waits. Each payer has a share of
the owner's room for workflows, for dispatches that wait and for commands that wait for the ledger,
so that a payer that fills its share leaves others theirs. design.md section 3 (Bounds, Fairness);
decision 0119.
"""

from __future__ import annotations

from collections import Counter

from actors.engine.ports import DispatchPort, LedgerPort
from core.errors import ErrorCode, ServiceError
from core.market.fair_share import has_room
from core.settings import Settings


class Door:
    """Counts what each payer has at one owner.

    Args:
        settings: the room for workflows and for waiting dispatches.
        dispatcher: knows the dispatches that wait.
        ledger: knows the commands that wait.
    """

    def __init__(self, settings: Settings, dispatcher: DispatchPort, ledger: LedgerPort) -> None:
        self._workflows_max = settings.workflows_per_actor_max
        self._dispatches_max = settings.dispatch_queue_max
        self._dispatcher = dispatcher
        self._ledger = ledger
        # Of each payer, and of all.
        self._workflows: Counter[str] = Counter()
        self._workflows_total = 0
        self._opening: Counter[str] = Counter()
        self._opening_total = 0

    def __repr__(self) -> str:
        return f"<Door workflows={self._workflows_total} opening={self._opening_total}>"

    def refusal(self, payer: str) -> ServiceError | None:
        """Return why a payer may not begin one more workflow now, None when it may."""
        held, taken = self._workflows[payer], self._workflows_total
        if not has_room(held, taken, self._workflows_max):
            return _overloaded(held, taken, "workflows run", self._workflows_max)
        held = self._dispatcher.waiting_of(payer) + self._opening[payer]
        taken = self._dispatcher.waiting + self._opening_total
        if not has_room(held, taken, self._dispatches_max):
            return _overloaded(held, taken, "dispatches wait", self._dispatches_max)
        if not self._ledger.has_room(payer):
            message = "as many commands wait here for the ledger as may"
            return ServiceError(ErrorCode.OVERLOADED, message, retry_after_s=1)
        return None

    def enter(self, payer: str) -> None:
        """Note that a workflow of a payer is unfinished here."""
        self._workflows[payer] += 1
        self._workflows_total += 1

    def leave(self, payer: str) -> None:
        """Note that a workflow of a payer has ended, or is not this owner's any more."""
        _take_off(self._workflows, payer, 1)
        self._workflows_total -= 1

    def open(self, payer: str, dispatches: int) -> None:
        """Note the dispatches that wait for the commit of a publish."""
        self._opening[payer] += dispatches
        self._opening_total += dispatches

    def opened(self, payer: str, dispatches: int) -> None:
        """Note that a publish is committed, or refused."""
        _take_off(self._opening, payer, dispatches)
        self._opening_total -= dispatches


def _take_off(counter: Counter[str], payer: str, count: int) -> None:
    counter[payer] -= count
    assert counter[payer] >= 0, f"{payer} gives back more than it has"
    if not counter[payer]:
        del counter[payer]


def _overloaded(held: int, taken: int, what: str, limit: int) -> ServiceError:
    message = f"{taken} {what} here, {held} of this payer, for {limit} there is room"
    return ServiceError(ErrorCode.OVERLOADED, message, retry_after_s=1)
