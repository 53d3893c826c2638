"""One lock per key, kept by those who hold it or wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)


class KeyedLocks(Generic[K]):
    """Locks that are made when they are asked for and forgotten when no task uses them."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[K, asyncio.Lock] = WeakValueDictionary()

    def of(self, key: K) -> asyncio.Lock:
        """Return the lock of this key; the caller refers to it until it is released."""
        return self._locks.setdefault(key, asyncio.Lock())
