"""Whether an owner takes one more workflow of a payer, beside what all payers have here.

Only publishes are refused: what was accepted goes on, however much waits. Each payer has a share of
the owner's room for workflows, for dispatches that wait and for commands that wait for the ledger,
so that a payer that fills its share leaves others theirs. Decision ledger-writer.
"""

from __future__ import annotations

from typing import Final

from actors.ports import DispatchPort, LedgerPort
from core.errors import ErrorCode, ServiceError
from core.market.sharing.fair_share import Held, has_room
from core.settings import Settings

# Dispatches that wait at one owner.
DISPATCHES_MAX: Final = 100_000


class Door:
    """Knows what each payer has at one owner.

    `unfinished`: the workflows of each payer, quarantined ones too. `opening`: the dispatches that
    wait for the commit of a publish.

    Args:
        settings: the room for workflows.
        dispatcher: knows the dispatches that wait.
        ledger: knows the commands that wait.
        dispatches_max: dispatches that may wait.
    """

    def __init__(
        self,
        settings: Settings,
        dispatcher: DispatchPort,
        ledger: LedgerPort,
        *,
        dispatches_max: int = DISPATCHES_MAX,
    ) -> None:
        self._workflows_max = settings.workflows_per_actor_max
        self._dispatches_max = dispatches_max
        self._dispatcher = dispatcher
        self._ledger = ledger
        self.unfinished = Held()
        self.opening = Held()

    def refusal(self, payer: str) -> ServiceError | None:
        """Return why a payer may not begin one more workflow now, None when it may."""
        held, taken = self.unfinished.of(payer), self.unfinished.total
        if not has_room(held, taken, self._workflows_max):
            return _overloaded(held, taken, "workflows run", self._workflows_max)
        held = self._dispatcher.waiting_of(payer) + self.opening.of(payer)
        taken = self._dispatcher.waiting + self.opening.total
        if not has_room(held, taken, self._dispatches_max):
            return _overloaded(held, taken, "dispatches wait", self._dispatches_max)
        if not self._ledger.has_room(payer):
            message = "ledger queue of this process is full: repeat the request later"
            return ServiceError(ErrorCode.OVERLOADED, message, retry_after_s=1)
        return None


def _overloaded(held: int, taken: int, what: str, limit: int) -> ServiceError:
    message = f"{taken} {what} in this process, {held} of this payer: the limit is {limit}"
    return ServiceError(ErrorCode.OVERLOADED, message, retry_after_s=1)
