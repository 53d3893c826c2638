"""Commands to the ledger from one process: batched, in order, repeated with the same keys.

A commit whose outcome is unknown (the ledger actor died, Postgres is away) is repeated until it is
known: keys make repeats harmless. Order is kept because one call is in flight and a repeat happens
before the next batch leaves. design.md section 3; money.md section 4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from actors.channel import Channel, ChannelStatistics
from core.errors import ErrorCode, ServiceError
from ledger.commands import Command, Outcome

RETRY_DELAY_S_MIN = 0.05
RETRY_DELAY_S_MAX = 2.0


class LedgerClient:
    """The ledger as seen from a workflow owner or a Serve replica.

    Args:
        call: carries a batch to the ledger actor; raises when the outcome is unknown.
        is_unknown: whether an exception of `call` means "repeat with the same keys".
        capacity: most commands that may wait.
        batch_size: most commands in one call.
    """

    def __init__(
        self,
        call: Callable[[list[Command]], Awaitable[Sequence[Outcome]]],
        is_unknown: Callable[[BaseException], bool],
        *,
        capacity: int,
        batch_size: int,
    ) -> None:
        self._call = call
        self._is_unknown = is_unknown
        self._is_down = False
        self._channel: Channel[Command, Outcome] = Channel(
            "the ledger", self._call_until_known, capacity=capacity, batch_size=batch_size
        )

    @property
    def is_down(self) -> bool:
        """Whether the last attempt to reach the ledger failed and none has succeeded since."""
        return self._is_down

    def statistics(self) -> ChannelStatistics:
        """Return the counters of the channel below."""
        return self._channel.statistics()

    def submit(self, command: Command, done: Callable[[Outcome | BaseException], None]) -> None:
        """Queue a command; `done` gets its outcome once that is known, however long it takes."""
        self._channel.submit(command, done)

    async def commit(self, command: Command, *, timeout_s: float) -> Outcome:
        """Commit one command for a waiting caller.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE when the outcome is not known after `timeout_s`; the
                command may still be applied later, the same key tells.
        """
        self.refuse_when_down()
        try:
            return await asyncio.wait_for(self._channel.request(command), timeout_s)
        except TimeoutError:
            raise unavailable() from None

    def refuse_when_down(self) -> None:
        """Raise LEDGER_UNAVAILABLE while the ledger is known to be away."""
        if self._is_down:
            raise unavailable()

    async def _call_until_known(self, batch: list[Command]) -> Sequence[Outcome]:
        delay_s = RETRY_DELAY_S_MIN
        while True:
            try:
                outcomes = await self._call(batch)
            except Exception as error:  # the edge to another process
                if not self._is_unknown(error):
                    raise
                self._is_down = True
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, RETRY_DELAY_S_MAX)
            else:
                self._is_down = False
                return outcomes


def unavailable() -> ServiceError:
    """Return the error for a ledger that cannot be reached."""
    return ServiceError(
        ErrorCode.LEDGER_UNAVAILABLE,
        "the ledger cannot be reached; repeat the request with the same Idempotency-Key",
        retry_after_s=1,
    )
