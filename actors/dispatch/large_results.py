"""Stores large results before their events are delivered, and caches large results.

While the store is unavailable, replies wait in memory. The limit of open orders bounds the number
of waiting replies. The caller bounds the wait by the workflow's deadline.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeVar

from msgspec.structs import replace

from core.errors import ServiceError
from core.workflow.events import AttemptSucceeded, BlobRef, Event
from ledger.blobs import BlobStore

# Size of the cache of large results in one process.
BLOB_CACHE_BYTES_MAX: Final = 64 * 1024 * 1024

RETRY_DELAY_S_MIN = 0.1
RETRY_DELAY_S_MAX = 2.0

T = TypeVar("T")


class Blobs:
    """The store of large results, with an LRU cache.

    Args:
        storage: stores bytes under their hash.
        cache_bytes_max: size of the cache.
    """

    def __init__(self, storage: BlobStore, *, cache_bytes_max: int) -> None:
        self._storage = storage
        self._cache_bytes_max = cache_bytes_max
        self._cached: OrderedDict[str, bytes] = OrderedDict()
        self._cached_bytes = 0

    async def put(self, body: bytes) -> BlobRef:
        """Store bytes and return their reference.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE, OVERLOADED.
        """
        name = await self._storage.put(body)
        self._keep(name, body)
        return BlobRef(name, len(body))

    async def load(self, refs: Collection[BlobRef]) -> dict[str, bytes]:
        """Return the JSON texts of results by hash; retry while the store is unavailable.

        Raises:
            LookupError: a result is not stored.
            ValueError: stored bytes do not match their hash.
        """
        return await _retry_while_unavailable(lambda: self.texts(refs))

    async def texts(self, refs: Collection[BlobRef]) -> dict[str, bytes]:
        """Return the JSON texts of results by hash.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE, OVERLOADED.
            LookupError, ValueError: as in `load`.
        """
        names = {ref.hash for ref in refs}
        found: dict[str, bytes] = {}
        for name in names & self._cached.keys():
            self._cached.move_to_end(name)
            found[name] = self._cached[name]
        missing = names - found.keys()
        if missing:
            loaded = await self._storage.get(missing)
            if lost := missing - loaded.keys():
                raise LookupError(f"{len(lost)} large results are not stored, {min(lost)} is one")
            for name, body in loaded.items():
                self._keep(name, body)
            found.update(loaded)
        return found

    def _keep(self, name: str, body: bytes) -> None:
        if name in self._cached or len(body) > self._cache_bytes_max:
            return
        self._cached[name] = body
        self._cached_bytes += len(body)
        while self._cached_bytes > self._cache_bytes_max:
            _, oldest = self._cached.popitem(last=False)
            self._cached_bytes -= len(oldest)


def large_body(event: Event, inline_bytes_max: int) -> bytes | None:
    """Return the bytes of an event's result if it must be stored apart, else None."""
    if not isinstance(event, AttemptSucceeded) or event.result_json is None:
        return None
    if len(event.result_json) * 4 <= inline_bytes_max:
        return None  # in UTF-8 a character has at most 4 bytes
    body = event.result_json.encode()
    return body if len(body) > inline_bytes_max else None


async def store_large_result(event: Event, body: bytes, blobs: Blobs) -> Event:
    """Store a large result; return the event with a reference in place of the result.

    A failed write is retried without a limit; the caller bounds the wait.

    Args:
        body: the bytes of the result, from `large_body`.
    """
    assert isinstance(event, AttemptSucceeded)
    ref = await _retry_while_unavailable(lambda: blobs.put(body))
    assert ref.hash == event.output_hash, "a result is stored under the hash of its canonical form"
    return replace(event, result_json=None, result_ref=ref)


async def _retry_while_unavailable(ask: Callable[[], Awaitable[T]]) -> T:
    delay_s = RETRY_DELAY_S_MIN
    while True:
        try:
            return await ask()
        except ServiceError:  # the database is unavailable, or too slow (OVERLOADED)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_DELAY_S_MAX)
