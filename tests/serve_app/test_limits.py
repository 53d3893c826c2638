"""Rate limits: exact within a block over several replicas, by principal, key and class."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from core.settings import Settings
from core.trust.access import Principal
from serve_app.limits import Granted, RateClass, RateLimiter, Standing

ALICE = Principal(did="did:net:alice", key_id="1", scopes=frozenset())


@dataclass
class Window:
    """The database's count, as `rate_lease` keeps it: a fixed minute from the first call."""

    used: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    calls: int = 0

    async def take(self, name: str, rate: str, block: int, limit: int, now_ms: int) -> Granted:
        self.calls += 1
        used, resets_ms = self.used.get((name, rate), (0, now_ms + 60_000))
        if now_ms >= resets_ms:
            used, resets_ms = 0, now_ms + 60_000
        granted = min(block, limit - used)
        self.used[(name, rate)] = (used + granted, resets_ms)
        return Granted(granted, used + granted, resets_ms)


async def spend(
    limiter: RateLimiter,
    rate: RateClass,
    times: int,
    now_ms: int = 0,
    who: Principal | None = ALICE,
) -> list[Standing]:
    standings = [await limiter.take(who, rate, now_ms) for _ in range(times)]
    return [standing for standing in standings if standing is not None]


@pytest.mark.parametrize(
    ("rate", "limit"),
    [
        (RateClass.READ, 1_000),
        (RateClass.WRITE, 100),
        (RateClass.BULK, 10),
        (RateClass.MACHINE, 6_000),
    ],
)
def test_limits_are_the_specifications(rate: RateClass, limit: int) -> None:
    async def scenario() -> list[Standing]:
        return await spend(RateLimiter(Settings(), Window().take), rate, limit + 5)

    standings = asyncio.run(scenario())
    assert [standing.is_allowed for standing in standings] == [True] * limit + [False] * 5
    assert [standing.remaining for standing in standings[:limit]] == list(range(limit - 1, -1, -1))


def test_a_window_begins_anew_a_minute_after_its_first_call() -> None:
    async def scenario() -> tuple[Standing, Standing]:
        limiter = RateLimiter(Settings(), Window().take)
        before = (await spend(limiter, RateClass.BULK, 11))[-1]
        (late,) = await spend(limiter, RateClass.BULK, 1, now_ms=59_999)
        (fresh,) = await spend(limiter, RateClass.BULK, 1, now_ms=60_000)
        assert not late.is_allowed
        return before, fresh

    before, fresh = asyncio.run(scenario())
    assert not before.is_allowed
    assert before.refusal(30_000).retry_after_s == 30
    assert fresh.is_allowed


def test_two_replicas_share_a_limit_within_one_block() -> None:
    async def scenario() -> int:
        window = Window()
        replicas = [RateLimiter(Settings(), window.take) for _ in range(2)]
        allowed = 0
        for number in range(300):
            (standing,) = await spend(replicas[number % 2], RateClass.WRITE, 1)
            allowed += standing.is_allowed
        return allowed

    assert 90 <= asyncio.run(scenario()) <= 100


def test_the_database_is_asked_once_a_block_also_under_concurrency() -> None:
    async def scenario() -> tuple[int, int]:
        window = Window()
        limiter = RateLimiter(Settings(), window.take)
        taken = await asyncio.gather(*(limiter.take(ALICE, RateClass.WRITE, 0) for _ in range(150)))
        return window.calls, sum(standing is not None and standing.is_allowed for standing in taken)

    assert asyncio.run(scenario()) == (10, 100)


def test_keys_of_one_principal_count_apart() -> None:
    async def scenario() -> bool:
        limiter = RateLimiter(Settings(), Window().take)
        await spend(limiter, RateClass.BULK, 10)
        other = Principal(did=ALICE.did, key_id="2", scopes=frozenset())
        (standing,) = await spend(limiter, RateClass.BULK, 1, who=other)
        return standing.is_allowed

    assert asyncio.run(scenario())


def test_an_unlimited_key_is_not_counted_and_its_own_limits_are() -> None:
    free = Principal(
        did=ALICE.did,
        key_id="3",
        scopes=frozenset(),
        rate_class="unlimited",
        rate_limits=(("write", 2),),
    )

    async def scenario() -> tuple[Standing | None, list[bool]]:
        limiter = RateLimiter(Settings(), Window().take)
        reading = await limiter.take(free, RateClass.READ, 0)
        writes = await spend(limiter, RateClass.WRITE, 3, who=free)
        return reading, [standing.is_allowed for standing in writes]

    assert asyncio.run(scenario()) == (None, [True, True, False])


def test_headers_say_where_one_stands() -> None:
    standing = Standing(RateClass.WRITE, 100, 41, 90_500, is_allowed=True)
    assert dict(standing.headers(60_000)) == {
        b"ratelimit-policy": b'"write";q=100;w=60',
        b"ratelimit": b'"write";r=41;t=31',
        b"x-ratelimit-limit": b"100",
        b"x-ratelimit-remaining": b"41",
        b"x-ratelimit-reset": b"90",
    }
