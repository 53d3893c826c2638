"""Looks up stored credentials in batches, and caches the results for a second.

Theory of operation: a found credential is cached and looked up again when it is older than a
second, so a revocation takes effect within a second. Credentials that were not found have a
separate cache, so a flood of wrong credentials cannot evict valid ones. Look-ups are batched.
Cached and new credentials are looked up in separate batches. Each address has a budget of wrong
credentials per minute. Credentials of an address over its budget are looked up in batches with a
pause before each batch. Each address gets a limited share of such a batch. So a flood costs a few
queries per second in total, and a valid credential from the same address still succeeds. Durations
use a monotonic clock.
Decisions limits-and-admission and signed-requests-and-claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

from actors.transport.channel import Channel
from core.errors import ErrorCode, ServiceError
from serve_app.callers.call_windows import ADDRESSES_MAX, CallWindows
from serve_app.callers.shares import Shares

WRONG_RATE: Final = 300
PAUSE_S: Final = 0.1

REMEMBERED_MS: Final = 1_000
BATCH: Final = 200
WAITING_MAX: Final = 2_000
_PAUSED_RETRY_AFTER_S: Final = 1

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WrongCredentials:
    """Limits the wrong credentials of each address, with one count for all kinds of credentials.

    Args:
        share: n: an address may have at most 1/n of the free places in a paused batch.
        rate: wrong credentials per minute and address that are looked up without a pause.
        pause_s: the pause before each batch for addresses beyond the rate, seconds.
    """

    def __init__(self, share: int, *, rate: int = WRONG_RATE, pause_s: float = PAUSE_S) -> None:
        self._counts = CallWindows(rate, ADDRESSES_MAX)
        self._pause_s = pause_s
        self._paused = Shares(BATCH, share)

    def take(self, address: str, clock_ms: int) -> bool:
        """Count a wrong or unknown credential. Return False if the address is over its budget."""
        return self._counts.take(address, clock_ms).is_allowed

    def give_back(self, address: str, clock_ms: int) -> None:
        """Undo the count of a credential that turned out to be valid."""
        self._counts.give_back(address, clock_ms)

    def is_spent(self, address: str, clock_ms: int) -> bool:
        """Return whether the budget of an address is used up."""
        window = self._counts.find(address, clock_ms)
        return window is not None and window.used >= window.limit

    async def pause(self) -> None:
        """Pause before the credentials of an address whose budget is used up are verified."""
        await asyncio.sleep(self._pause_s)

    @asynccontextmanager
    async def place(self, address: str) -> AsyncIterator[None]:
        """Take a place in a paused batch, for an address whose budget is used up.

        Raises:
            ServiceError: RATE_LIMITED: the share of the address is used up.
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


class CredentialLookups(Generic[K, V]):
    """Looks up and caches one kind of credential.

    Args:
        name: the name of the kind, for messages.
        find: looks up a batch: returns the stored value of each key, None for an unknown key.
        wrong: limits the wrong credentials of each address.
        remembered_max: the most found credentials that are cached, and the most unknown
            credentials.
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
        # The least recently used key is first.
        self._known: dict[K, tuple[int, V]] = {}
        self._unknown: dict[K, int] = {}
        self._asked: dict[K, asyncio.Future[V | None]] = {}
        self._known_lookups = _channel(f"remembered {name}", find)
        self._new_lookups = _channel(f"new {name}", find)
        self._paused_lookups = _channel(f"{name} of busy addresses", self._find_after_pause)

    def __repr__(self) -> str:
        return f"<CredentialLookups known={len(self._known)} unknown={len(self._unknown)}>"

    def remembered(self, key: K, clock_ms: int) -> tuple[V | None, bool]:
        """Return the cached value of a key, and whether the value is still fresh.

        A value that is not fresh must be looked up again.

        Args:
            key: the key of the credential.
            clock_ms: the time of a monotonic clock, milliseconds.
        """
        known = self._known.pop(key, None)
        if known is None:
            return None, False
        self._known[key] = known
        found_ms, found = known
        return found, clock_ms - found_ms < REMEMBERED_MS

    async def look_up(self, key: K, address: str, clock_ms: int, *, is_trusted: bool) -> V | None:
        """Look up a credential in the database, and return its value; None if it is not stored.

        If a look-up in the last second found no such credential, the database is not read again.

        Args:
            key: the key of the credential.
            address: the client's address.
            clock_ms: the time of a monotonic clock, milliseconds.
            is_trusted: the credential is cached or verified. Otherwise it counts as wrong until
                it is found.

        Raises:
            ServiceError: RATE_LIMITED: too many wrong credentials from this address; OVERLOADED;
                LEDGER_UNAVAILABLE.
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
            # All concurrent requests for this key share one look-up. It is a task of its own, so it
            # continues if the first request is cancelled.
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
