"""What is stored of credentials, looked up in batches and remembered for a second.

Theory of operation: what was found is remembered and asked for again after a second, so whatever is
revoked ends within one; only what was found is remembered so, whatever else is tried. What was not
found is remembered apart, for a second. Look-ups travel in batches, those of remembered credentials
apart from all others. Each address has a budget of wrong credentials; beyond it, what it sends is
looked up in one paused batch after the other, a few of each address in each: so a flood costs a few
queries a second in all, and a right credential from the same address still gets through. Durations
are of a monotonic clock. Decisions limits-and-admission and signed-requests-and-claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

from actors.transport.channel import Channel
from core.errors import ErrorCode, ServiceError
from serve_app.callers.shares import Shares
from serve_app.callers.windows import ADDRESSES_MAX, AddressWindows

WRONG_RATE: Final = 300
PAUSE_S: Final = 0.1

REMEMBERED_MS: Final = 1_000
BATCH: Final = 200
WAITING_MAX: Final = 2_000
_PAUSED_RETRY_AFTER_S: Final = 1

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WrongCredentials:
    """How many wrong credentials each address may send; one count for all kinds.

    Args:
        share: an address holds at most 1/n of the free places for look-ups after a pause.
        rate: wrong credentials a minute and address that are looked up at once.
        pause_s: the pause before each batch of look-ups for addresses above that rate.
    """

    def __init__(self, share: int, *, rate: int = WRONG_RATE, pause_s: float = PAUSE_S) -> None:
        self._counts = AddressWindows(rate, ADDRESSES_MAX)
        self._pause_s = pause_s
        self._paused = Shares(BATCH, share)

    def take(self, address: str, clock_ms: int) -> bool:
        """Count a credential that is wrong, or may be; False beyond the budget."""
        return self._counts.take(address, clock_ms).is_allowed

    def give_back(self, address: str, clock_ms: int) -> None:
        """Uncount a credential that was right."""
        self._counts.give_back(address, clock_ms)

    def is_spent(self, address: str, clock_ms: int) -> bool:
        """Say whether an address has nothing left of its budget."""
        window = self._counts.find(address, clock_ms)
        return window is not None and window.used >= window.limit

    async def pause(self) -> None:
        """Wait as long as a credential waits that comes from a busy address."""
        await asyncio.sleep(self._pause_s)

    @asynccontextmanager
    async def place(self, address: str) -> AsyncIterator[None]:
        """Hold one of the places for credentials of busy addresses.

        Raises:
            ServiceError: RATE_LIMITED; the address has its share of them.
        """
        if not self._paused.take(address):
            raise ServiceError(
                ErrorCode.RATE_LIMITED,
                f"too many wrong credentials come from {address}",
                retry_after_s=_PAUSED_RETRY_AFTER_S,
            )
        try:
            yield
        finally:
            self._paused.give_back(address)


class Lookups(Generic[K, V]):
    """The look-ups of one kind of credential.

    Args:
        name: for messages.
        find: answers a batch: what is stored under each, None where nothing is.
        wrong: the budgets.
        remembered_max: how many are remembered of those that were found, and of the others.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[list[K]], Awaitable[Sequence[V | None]]],
        wrong: WrongCredentials,
        *,
        remembered_max: int,
    ) -> None:
        self._find = find
        self._wrong = wrong
        self._remembered_max = remembered_max
        # In the order of use, the oldest first.
        self._known: dict[K, tuple[int, V]] = {}
        self._unknown: dict[K, int] = {}
        self._asked: dict[K, asyncio.Future[V | None]] = {}
        self._known_lookups = _channel(f"remembered {name}", find)
        self._new_lookups = _channel(f"new {name}", find)
        self._paused_lookups = _channel(f"{name} of busy addresses", self._find_after_pause)

    def __repr__(self) -> str:
        return f"<Lookups known={len(self._known)} unknown={len(self._unknown)}>"

    def remembered(self, key: K, clock_ms: int) -> tuple[V | None, bool]:
        """Return what was found under this key the last time, and whether that counts still.

        Otherwise it is to be asked for again.

        Args:
            clock_ms: a monotonic clock, milliseconds.
        """
        known = self._known.pop(key, None)
        if known is None:
            return None, False
        self._known[key] = known
        found_ms, found = known
        return found, clock_ms - found_ms < REMEMBERED_MS

    async def look_up(self, key: K, address: str, clock_ms: int, *, is_trusted: bool) -> V | None:
        """Ask the database, unless nothing was found less than a second ago.

        Args:
            address: where the credential comes from.
            clock_ms: a monotonic clock, milliseconds.
            is_trusted: whether it was found before or is proven, and costs no budget.

        Raises:
            ServiceError: RATE_LIMITED; too many wrong ones came from this address.
        """
        unknown_ms = self._unknown.get(key)
        if unknown_ms is not None and clock_ms - unknown_ms < REMEMBERED_MS:
            return None
        if is_trusted:
            found = await self._answer(key, self._known_lookups)
        else:
            if self._wrong.take(address, clock_ms):
                found = await self._answer(key, self._new_lookups)
            else:
                async with self._wrong.place(address):
                    found = await self._answer(key, self._paused_lookups)
            if found is not None:
                self._wrong.give_back(address, clock_ms)
        self._remember(key, found, clock_ms)
        return found

    async def _find_after_pause(self, keys: list[K]) -> Sequence[V | None]:
        await self._wrong.pause()
        return await self._find(keys)

    async def _answer(self, key: K, lookups: Channel[K, V | None]) -> V | None:
        asked = self._asked.get(key)
        if asked is None:
            # One question for all that wait; a task, so that the first asker may leave.
            asked = asyncio.ensure_future(lookups.request(key))
            self._asked[key] = asked
            asked.add_done_callback(lambda _: self._asked.pop(key, None))
        return await asyncio.shield(asked)

    def _remember(self, key: K, found: V | None, clock_ms: int) -> None:
        if found is None:
            self._known.pop(key, None)
            self._unknown[key] = clock_ms
            if len(self._unknown) > self._remembered_max:
                del self._unknown[next(iter(self._unknown))]
        else:
            self._known[key] = (clock_ms, found)
            if len(self._known) > self._remembered_max:
                del self._known[next(iter(self._known))]


def _channel(
    name: str, find: Callable[[list[K]], Awaitable[Sequence[V | None]]]
) -> Channel[K, V | None]:
    return Channel(name, find, capacity=WAITING_MAX, batch_size=BATCH)
