"""Rate limits: calls per owner in fixed windows of a minute, leased from the database in blocks.

Theory of operation: the database has one operational row per owner DID and rate class, with the
count of the current window. All keys of an owner share this count. A replica leases a block of
calls (a tenth of the calling key's limit; single calls for bulk) and spends the block from memory.
So the limit over all replicas is exact to within one block, and only one call per block costs a
database round trip. The limit of the calling key bounds the owner's count, so an owner gets no more
calls by using several keys. The database decides when a window begins. Replicas measure the time
until its end by their monotonic clocks.
Callers without a credential are counted per address, in memory
(`serve_app/callers/call_windows.py`).
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
from serve_app.callers.call_windows import ADDRESSES_MAX, CallWindows, Window

K = TypeVar("K", bound=Hashable)


class KeyedLocks(Generic[K]):
    """One mutex per key. A mutex exists from its first use until no task refers to it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[K, asyncio.Lock] = WeakValueDictionary()

    def of(self, key: K) -> asyncio.Lock:
        """Return the lock of a key. The caller must keep a reference until the lock is released."""
        return self._locks.setdefault(key, asyncio.Lock())


UNLIMITED = "unlimited"
# After a refusal with this header, HAProxy itself refuses the caller's next calls of the window
# (decision limits-and-admission).
SPENT_HEADER = b"x-callboard-spent"

# The calls per minute that a peer may make in each rate class. The limit is high, because a peer
# calls for all payers of its region.
PEER_RATE = 60_000

_BLOCKS_PER_WINDOW = 10
_LEASES_MAX = 50_000


Headers = list[tuple[bytes, bytes]]


class RateClass(StrEnum):
    """The class under which a call is counted (specification, Limits). EXEMPT is not counted."""

    READ = "read"
    WRITE = "write"
    BULK = "bulk"
    MACHINE = "machine"
    EXEMPT = "exempt"


# (owner DID, class, requested calls, limit of the window) -> granted block
TakeBlock = Callable[[str, str, int, int], Awaitable[RateBlock]]


@dataclass(slots=True)
class _Lease:
    """A leased block of calls.

    `left`: the calls of the block that are not spent. `used`: the calls that the database has
    granted to all replicas in this window, including this whole block. `ends_ms`: the end of the
    window, by the monotonic clock.
    """

    left: int
    used: int
    ends_ms: int


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a caller's rate limit in the current window, after the current call."""

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
        """Return the header that tells HAProxy that the limit is spent, and when the window ends.

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
    """Counts the calls of owners, and of addresses without a credential, by rate class.

    Args:
        settings: the limits per minute.
        take_block: leases a block of calls from the database.
        replicas: the number of replicas on this machine, 1 or more.
    """

    def __init__(self, settings: Settings, take_block: TakeBlock, *, replicas: int = 1) -> None:
        self._limits = {
            RateClass.READ: settings.read_rate,
            RateClass.WRITE: settings.write_rate,
            RateClass.BULK: settings.bulk_rate,
            RateClass.MACHINE: settings.machine_rate,
        }
        # Replicas count addresses separately, so each replica applies its part of the limit.
        self._addresses = {
            rate: CallWindows(-(-limit // replicas), ADDRESSES_MAX)
            for rate, limit in self._limits.items()
        }
        self._take_block = take_block
        self._leases: dict[tuple[str, RateClass], _Lease] = {}
        self._renewals = KeyedLocks[tuple[str, RateClass]]()

    async def take(
        self, principal: Principal | None, address: str, rate: RateClass, clock_ms: int
    ) -> Standing | None:
        """Count one call, and return the state of the limit; None if the call is not limited.

        Args:
            principal: the caller; None without a credential.
            address: the client's address. A call without a credential, or with the rate class
                `BY_ADDRESS`, counts under the address. A call of a stranger counts under the
                address and under the DID.
            rate: the rate class of the call.
            clock_ms: the time of a monotonic clock, milliseconds.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE or OVERLOADED.
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
        """Undo the count of a call under its address, because the call now counts under its owner.

        Args:
            address, rate, clock_ms: as for `take`.
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
        """Spend one call of the current lease. Return None if a new lease is needed."""
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
        # A grant of 0 calls means that the limit is reached, even if the returned count is lower.
        used = granted.used if granted.calls else max(granted.used, limit)
        self._leases[key] = _Lease(granted.calls, used, clock_ms + max(1, granted.ends_in_ms))

    def _forget_ended(self, clock_ms: int) -> None:
        ended = [key for key, lease in self._leases.items() if lease.ends_ms <= clock_ms]
        # If no lease has ended, the oldest leases are dropped. Their remaining calls are lost, and
        # never granted twice.
        for key in ended or list(self._leases)[: _LEASES_MAX // 10]:
            del self._leases[key]


def _standing(rate: RateClass, window: Window, clock_ms: int) -> Standing:
    left = max(0, window.limit - window.used)
    return Standing(rate, window.limit, left, window.ends_ms - clock_ms, window.is_allowed)
