"""Admission control of one owner: whether a payer may publish one more workflow.

Only publishes are refused. Accepted workflows continue, however long the queues are. Three limits
apply: to unfinished workflows, to waiting dispatches, and to commands that wait for the ledger.
Each payer has a share of each limit, so one payer cannot use up the limits alone.
Decision ledger-writer.
"""

from __future__ import annotations

from typing import Final

from actors.ports import DispatchPort, LedgerPort
from core.errors import ErrorCode, ServiceError
from core.market.sharing.fair_share import Held, has_room
from core.settings import Settings

# Maximum number of waiting dispatches of all payers at one owner.
DISPATCHES_MAX: Final = 100_000


class PublishAdmission:
    """Counts the work of each payer at one owner, and refuses publishes beyond the limits.

    `unfinished`: the number of unfinished workflows per payer, quarantined ones included.
    `opening`: the number of dispatches per payer that wait for the commit of their publish.

    Args:
        settings: `workflows_per_actor_max` is the limit of unfinished workflows.
        dispatcher: counts the waiting dispatches.
        ledger: says whether the command queue has room for a payer.
        dispatches_max: the maximum number of waiting dispatches of all payers.
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
        """Return the error if a payer may not publish one more workflow now, None if it may."""
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
