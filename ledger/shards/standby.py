"""A ledger process that is not the writer yet: it waits until it may take the head.

It may (1) when there never was a writer, or its actor was this one: the process before has ended,
or it would not run; (2) when that actor does not exist any more; (3) when it is told to, by a
planned hand-over; (4) when the head has stood still for 3 s by its own reads. The head is taken by
compare-and-set (`head_row.py`), so of several that may only one does. shards.md (Ledger). Decision
0211.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from core.shards.ledger_head import (
    HEAD_READ_MS,
    HeadSilence,
    LedgerAddress,
    LedgerHead,
    Succession,
)
from ledger.errors import LedgerUnavailable

GONE_TIMEOUT_S: Final = 2.0

log = logging.getLogger("callboard.ledger")


class Standby:
    """Waits for the head on behalf of one process.

    Args:
        address: where this process is reached.
        read: reads the head; raises LedgerUnavailable.
        is_gone: says whether an actor does not exist any more; raises when that is not known.
        boot_ms: a monotonic clock that runs while the machine is suspended.
        read_s: between two reads.
    """

    def __init__(
        self,
        address: LedgerAddress,
        read: Callable[[], Awaitable[LedgerHead]],
        is_gone: Callable[[str], Awaitable[bool]],
        boot_ms: Callable[[], int],
        *,
        read_s: float = HEAD_READ_MS / 1_000,
    ) -> None:
        self._address = address
        self._read = read
        self._is_gone = is_gone
        self._boot_ms = boot_ms
        self._read_s = read_s
        self._silence = HeadSilence()
        self._told = asyncio.Event()
        self._has_asked = False
        # Whether the head was read; and whether it was another's then.
        self.is_warm = self.is_standing_by = False

    def __repr__(self) -> str:
        return f"<Standby {self._address} warm={self.is_warm} {self._silence!r}>"

    def take_over(self) -> None:
        """Take the head from any writer: the present one has been told to hold its batches."""
        self._told.set()

    def stand_back(self) -> None:
        """Take the head no more because of `take_over`."""
        self._told.clear()

    async def wait_turn(self) -> Succession:
        """Return how to take the head, once this process may; without a deadline."""
        while True:
            try:
                asked_ms = self._boot_ms()
                head = await self._read()
                succession = await self._succession(head, asked_ms)
            except LedgerUnavailable as error:  # says nothing about the writer
                log.warning("head not read reason=%s", error.reason)
                await asyncio.sleep(self._read_s)
                continue
            self.is_warm, self.is_standing_by = True, succession is None
            if succession is not None:
                return succession
            # Told while the head was being read, it reads it again at once.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._read_s):
                    await self._told.wait()

    async def _succession(self, head: LedgerHead, asked_ms: int) -> Succession | None:
        """Return how to take a head that was read now, None when this process may not."""
        is_silent = self._silence.note(head, asked_ms=asked_ms, read_ms=self._boot_ms())
        writer = LedgerAddress.parse(head.address)
        if writer is None or writer.actor == self._address.actor or self._told.is_set():
            return Succession(str(self._address), head)
        if not self._has_asked:
            self._has_asked = True
            if await self._has_gone(writer.actor):
                log.warning("the writer's actor does not exist actor=%s", writer.actor)
                return Succession(str(self._address), head)
        if is_silent:
            log.warning("the head has stood still head=%s", head)
            return Succession(str(self._address), head, is_silent=True)
        return None

    async def _has_gone(self, actor: str) -> bool:
        try:
            async with asyncio.timeout(GONE_TIMEOUT_S):
                return await self._is_gone(actor)
        except Exception as error:  # the edge to other processes: it is waited for instead
            log.info("not known whether it exists actor=%s error=%r", actor, error)
            return False
