"""Rate limits: fixed minutes counted in the database, spent from blocks that a replica leases.

Theory of operation: the count of a minute is one operational row per (principal, class); a replica
takes a block of it at a time (a tenth of the limit, single calls for bulk) and spends it from
memory. So the limit is exact over all replicas within one block, and a call costs a database round
trip only once per block. Spec: Limits; contract.md section 2 (Rate limits).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.trust.access import Principal

WINDOW_MS = 60_000
ANONYMOUS = "anonymous"
UNLIMITED = "unlimited"

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


@dataclass(frozen=True, slots=True)
class Granted:
    """What the database granted, of a window that ends then; `used` counts these calls too."""

    calls: int
    used: int
    resets_ms: int


# (principal, class, wanted calls, limit of the window, now in ms) -> Granted
TakeBlock = Callable[[str, str, int, int, int], Awaitable[Granted]]


@dataclass(slots=True)
class _Lease:
    left: int
    unleased: int
    resets_ms: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a caller stands in the current window, after this call."""

    rate: RateClass
    limit: int
    remaining: int
    resets_ms: int
    is_allowed: bool

    def headers(self, now_ms: int) -> Headers:
        """Return the RateLimit headers of a reply."""
        name = self.rate.encode()
        wait_s = max(0, -(-(self.resets_ms - now_ms) // 1000))
        return [
            (b"ratelimit-policy", b'"%s";q=%d;w=%d' % (name, self.limit, WINDOW_MS // 1000)),
            (b"ratelimit", b'"%s";r=%d;t=%d' % (name, self.remaining, wait_s)),
            (b"x-ratelimit-limit", b"%d" % self.limit),
            (b"x-ratelimit-remaining", b"%d" % self.remaining),
            (b"x-ratelimit-reset", b"%d" % (self.resets_ms // 1000)),
        ]

    def refusal(self, now_ms: int) -> ServiceError:
        """Return the refusal of a call beyond the limit."""
        wait_s = max(1, -(-(self.resets_ms - now_ms) // 1000))
        return ServiceError(
            ErrorCode.RATE_LIMITED,
            f"more than {self.limit} {self.rate} operations in a minute, again in {wait_s} s",
            retry_after_s=wait_s,
        )


class RateLimiter:
    """Counts the calls of each principal and key, by class.

    Args:
        settings: the limits a minute.
        take_block: leases calls from the database.
    """

    def __init__(self, settings: Settings, take_block: TakeBlock) -> None:
        self._limits = {
            RateClass.READ: settings.read_rate,
            RateClass.WRITE: settings.write_rate,
            RateClass.BULK: settings.bulk_rate,
            RateClass.MACHINE: settings.machine_rate,
        }
        self._take_block = take_block
        self._leases: dict[tuple[str, RateClass], _Lease] = {}
        self._turns: dict[tuple[str, RateClass], asyncio.Lock] = {}

    def __repr__(self) -> str:
        return f"<RateLimiter leases={len(self._leases)}>"

    async def take(
        self, principal: Principal | None, rate: RateClass, now_ms: int
    ) -> Standing | None:
        """Count one call; None when nothing limits it.

        Args:
            principal: the caller; all anonymous callers share one count.
            rate: what the call counts as.
            now_ms: Unix time, milliseconds.
        """
        limit = self._limit(principal, rate)
        if limit is None:
            return None
        name = f"{principal.did}|{principal.key_id}" if principal is not None else ANONYMOUS
        key = (name, rate)
        standing = self._spend(key, limit, now_ms)
        if standing is not None:
            return standing
        turn = self._turns.setdefault(key, asyncio.Lock())
        async with turn:
            standing = self._spend(key, limit, now_ms)
            if standing is None:
                await self._renew(key, limit, now_ms)
                standing = self._spend(key, limit, now_ms)
        if not turn.locked():
            self._turns.pop(key, None)
        assert standing is not None, "a fresh lease decides"
        return standing

    def _limit(self, principal: Principal | None, rate: RateClass) -> int | None:
        if rate is RateClass.EXEMPT:
            return None
        if principal is not None:
            for name, limit in principal.rate_limits:
                if name == rate:
                    return limit
            if principal.rate_class == UNLIMITED:
                return None
        return self._limits[rate]

    def _spend(self, key: tuple[str, RateClass], limit: int, now_ms: int) -> Standing | None:
        """Take one call of the lease at hand; None when the database must be asked."""
        lease = self._leases.get(key)
        if lease is None or now_ms >= lease.resets_ms:
            return None
        if lease.left > 0:
            lease.left -= 1
            remaining = lease.left + lease.unleased
            return Standing(key[1], limit, remaining, lease.resets_ms, is_allowed=True)
        if lease.unleased > 0:
            return None
        return Standing(key[1], limit, 0, lease.resets_ms, is_allowed=False)

    async def _renew(self, key: tuple[str, RateClass], limit: int, now_ms: int) -> None:
        name, rate = key
        block = 1 if rate is RateClass.BULK else max(1, limit // _BLOCKS_PER_WINDOW)
        granted = await self._take_block(name, rate, block, limit, now_ms)
        if len(self._leases) >= _LEASES_MAX:
            self._forget_ended(now_ms)
        # A grant of nothing means that the window is spent, whatever the count says by now.
        unleased = max(0, limit - granted.used) if granted.calls else 0
        resets_ms = max(granted.resets_ms, now_ms + 1)
        self._leases[key] = _Lease(granted.calls, unleased, resets_ms)

    def _forget_ended(self, now_ms: int) -> None:
        ended = [key for key, lease in self._leases.items() if lease.resets_ms <= now_ms]
        # With none ended the oldest go: what they had left is lost, never granted twice.
        for key in ended or list(self._leases)[: _LEASES_MAX // 10]:
            del self._leases[key]
