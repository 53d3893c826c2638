"""Rate limits: fixed minutes per owner, counted in the database, spent from leased blocks.

Theory of operation: the count of a minute is one operational row per (owner DID, class), whichever
of the owner's keys are used; a replica takes a block of it at a time (a tenth of the calling key's
limit, single calls for bulk) and spends it from memory. So the limit is exact over all replicas
within one block, and a call costs a database round trip only once per block. The calling key says
how high the owner's count may go, so another key of the same owner lifts nothing. The minute is the
database's; replicas measure what is left of it by their monotonic clocks.
Callers without a key are counted per address, in memory (`serve_app/callers/windows.py`).
Reference: http.md (Request limits); decision limits-and-admission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.trust.access import BY_ADDRESS, PEER, Principal
from ledger.operational import WINDOW_MS, RateBlock
from serve_app.callers.windows import ADDRESSES_MAX, AddressWindows, Window

K = TypeVar("K", bound=Hashable)


class KeyedLocks(Generic[K]):
    """Locks that are made when they are asked for and forgotten when no task uses them."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[K, asyncio.Lock] = WeakValueDictionary()

    def of(self, key: K) -> asyncio.Lock:
        """Return the lock of this key; the caller refers to it until it is released."""
        return self._locks.setdefault(key, asyncio.Lock())


UNLIMITED = "unlimited"
# By this header of a refusal HAProxy refuses the caller's next calls itself (decision
# limits-and-admission).
SPENT_HEADER = b"x-callboard-spent"

# Calls of each class a minute that a peer may make: it speaks for all payers of its region.
PEER_RATE = 60_000

_BLOCKS_PER_WINDOW = 10
_LEASES_MAX = 50_000


Headers = list[tuple[bytes, bytes]]


class RateClass(StrEnum):
    """What a call counts as (specification, Limits); `exempt` ones are not counted."""

    READ = "read"
    WRITE = "write"
    BULK = "bulk"
    MACHINE = "machine"
    EXEMPT = "exempt"


# (owner DID, class, wanted calls, limit of the window) -> what is granted
TakeBlock = Callable[[str, str, int, int], Awaitable[RateBlock]]


@dataclass(slots=True)
class _Lease:
    """A block of a window: `left` of it, `used` of the window with the whole block."""

    left: int
    used: int
    ends_ms: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a caller stands in the current window, after this call."""

    rate: RateClass
    limit: int
    remaining: int
    ends_in_ms: int
    is_allowed: bool

    def headers(self, now_ms: int) -> Headers:
        """Return the RateLimit headers of a reply.

        Args:
            now_ms: Unix time, milliseconds.
        """
        name = self.rate.encode()
        wait_s = max(0, -(-self.ends_in_ms // 1000))
        return [
            (b"ratelimit-policy", b'"%s";q=%d;w=%d' % (name, self.limit, WINDOW_MS // 1000)),
            (b"ratelimit", b'"%s";r=%d;t=%d' % (name, self.remaining, wait_s)),
            (b"x-ratelimit-limit", b"%d" % self.limit),
            (b"x-ratelimit-remaining", b"%d" % self.remaining),
            (b"x-ratelimit-reset", b"%d" % ((now_ms + self.ends_in_ms) // 1000)),
        ]

    def spent_header(self, now_ms: int) -> tuple[bytes, bytes]:
        """Return the header that tells HAProxy until when, and that the limit is spent.

        Args:
            now_ms: Unix time, milliseconds.
        """
        return SPENT_HEADER, b"%d;%d" % ((now_ms + self.ends_in_ms) // 1000, self.limit)

    def refusal(self) -> ServiceError:
        """Return the refusal of a call beyond the limit."""
        wait_s = max(1, -(-self.ends_in_ms // 1000))
        return ServiceError(
            ErrorCode.RATE_LIMITED,
            f"more than {self.limit} {self.rate} operations in a minute, again in {wait_s} s",
            retry_after_s=wait_s,
        )


class RateLimiter:
    """Counts the calls of each owner, and of each address without a key, by class.

    Args:
        settings: the limits a minute.
        take_block: leases calls from the database.
        replicas: of this machine, 1 or more.
    """

    def __init__(self, settings: Settings, take_block: TakeBlock, *, replicas: int = 1) -> None:
        self._limits = {
            RateClass.READ: settings.read_rate,
            RateClass.WRITE: settings.write_rate,
            RateClass.BULK: settings.bulk_rate,
            RateClass.MACHINE: settings.machine_rate,
        }
        # Each replica counts addresses for itself, so each gives its part of the limit.
        self._addresses = {
            rate: AddressWindows(-(-limit // replicas), ADDRESSES_MAX)
            for rate, limit in self._limits.items()
        }
        self._take_block = take_block
        self._leases: dict[tuple[str, RateClass], _Lease] = {}
        self._renewals = KeyedLocks[tuple[str, RateClass]]()

    async def take(
        self, principal: Principal | None, address: str, rate: RateClass, clock_ms: int
    ) -> Standing | None:
        """Count one call; None when nothing limits it.

        Args:
            principal: the caller; None to count its address.
            address: where the call comes from.
            rate: what the call counts as.
            clock_ms: a monotonic clock, milliseconds.
        """
        if rate is RateClass.EXEMPT:
            return None
        is_owners = principal is not None and principal.rate_class != BY_ADDRESS
        if principal is None or principal.is_stranger or not is_owners:
            standing = _standing(rate, self._addresses[rate].take(address, clock_ms), clock_ms)
            if principal is None or not is_owners or not standing.is_allowed:
                return standing
        limit = self._limit(principal, rate)
        if limit is None:
            return None
        key = (principal.did, rate)
        spent = self._spend(key, limit, clock_ms)
        if spent is not None:
            return spent
        async with self._renewals.of(key):
            spent = self._spend(key, limit, clock_ms)
            if spent is None:
                await self._renew(key, limit, clock_ms)
                spent = self._spend(key, limit, clock_ms)
        assert spent is not None, "a fresh lease decides"
        return spent

    def give_back(self, address: str, rate: RateClass, clock_ms: int) -> None:
        """Uncount a call of an address that was found to be an owner's.

        Args are those of `take`.
        """
        self._addresses[rate].give_back(address, clock_ms)

    def _limit(self, principal: Principal, rate: RateClass) -> int | None:
        for name, limit in principal.rate_limits:
            if name == rate:
                return limit
        if principal.rate_class == UNLIMITED:
            return None
        if principal.rate_class == PEER:
            return max(self._limits[rate], PEER_RATE)
        return self._limits[rate]

    def _spend(self, key: tuple[str, RateClass], limit: int, clock_ms: int) -> Standing | None:
        """Take one call of the lease at hand; None when the database must be asked."""
        lease = self._leases.get(key)
        if lease is None or clock_ms >= lease.ends_ms:
            return None
        counted = lease.used - lease.left
        ends_in_ms = lease.ends_ms - clock_ms
        if counted >= limit:
            return Standing(key[1], limit, 0, ends_in_ms, is_allowed=False)
        if lease.left == 0:
            return None
        lease.left -= 1
        return Standing(key[1], limit, limit - counted - 1, ends_in_ms, is_allowed=True)

    async def _renew(self, key: tuple[str, RateClass], limit: int, clock_ms: int) -> None:
        did, rate = key
        block = 1 if rate is RateClass.BULK else max(1, limit // _BLOCKS_PER_WINDOW)
        granted = await self._take_block(did, rate, block, limit)
        if len(self._leases) >= _LEASES_MAX:
            self._forget_ended(clock_ms)
        # A grant of nothing means that the window is spent, whatever the count says by now.
        used = granted.used if granted.calls else max(granted.used, limit)
        self._leases[key] = _Lease(granted.calls, used, clock_ms + max(1, granted.ends_in_ms))

    def _forget_ended(self, clock_ms: int) -> None:
        ended = [key for key, lease in self._leases.items() if lease.ends_ms <= clock_ms]
        # With none ended the oldest go: what they had left is lost, never granted twice.
        for key in ended or list(self._leases)[: _LEASES_MAX // 10]:
            del self._leases[key]


def _standing(rate: RateClass, window: Window, clock_ms: int) -> Standing:
    left = max(0, window.limit - window.used)
    return Standing(rate, window.limit, left, window.ends_ms - clock_ms, window.is_allowed)
