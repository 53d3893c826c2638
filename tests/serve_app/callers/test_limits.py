"""Rate limits: exact within a block over several replicas, by owner and class, or by address."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from core.settings import Settings
from core.trust.access import BY_ADDRESS, Principal
from ledger.operational import RateBlock
from serve_app.callers.limits import RateClass, RateLimiter, Standing

ALICE = Principal(did="did:net:alice", key_id="1", scopes=frozenset())
HERE, THERE = "192.0.2.1", "192.0.2.2"


@dataclass
class Window:
    """The database's count, as `rate_lease` keeps it: a fixed minute from the first call."""

    used: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    calls: int = 0
    now_ms: int = 0

    async def take(self, did: str, rate: str, block: int, limit: int) -> RateBlock:
        self.calls += 1
        used, ends_ms = self.used.get((did, rate), (0, self.now_ms + 60_000))
        if self.now_ms >= ends_ms:
            used, ends_ms = 0, self.now_ms + 60_000
        granted = min(block, max(0, limit - used))
        self.used[(did, rate)] = (used + granted, ends_ms)
        return RateBlock(granted, used + granted, ends_ms - self.now_ms)


async def spend(
    limiter: RateLimiter,
    rate: RateClass,
    times: int,
    clock_ms: int = 0,
    who: Principal | None = ALICE,
    address: str = HERE,
) -> list[Standing]:
    standings = [await limiter.take(who, address, rate, clock_ms) for _ in range(times)]
    return [standing for standing in standings if standing is not None]


def key_of_alice(key_id: str, **limits: int) -> Principal:
    return Principal(ALICE.did, key_id, frozenset(), "standard", tuple(limits.items()))


@pytest.mark.parametrize(
    ("rate", "limit"),
    [
        (RateClass.READ, 1_000),
        (RateClass.WRITE, 100),
        (RateClass.BULK, 10),
        (RateClass.MACHINE, 6_000),
    ],
)
@pytest.mark.parametrize("who", [ALICE, None], ids=["owner", "address"])
async def test_limits_are_the_specifications(
    rate: RateClass, limit: int, who: Principal | None
) -> None:
    standings = await spend(RateLimiter(Settings(), Window().take), rate, limit + 5, who=who)
    assert [standing.is_allowed for standing in standings] == [True] * limit + [False] * 5
    assert [standing.remaining for standing in standings[:limit]] == list(range(limit - 1, -1, -1))


@pytest.mark.parametrize("who", [ALICE, None], ids=["owner", "address"])
async def test_a_window_begins_anew_a_minute_after_its_first_call(who: Principal | None) -> None:
    window = Window()
    limiter = RateLimiter(Settings(), window.take)
    before = (await spend(limiter, RateClass.BULK, 11, clock_ms=1_000, who=who))[-1]
    (late,) = await spend(limiter, RateClass.BULK, 1, clock_ms=31_000, who=who)
    assert not late.is_allowed
    assert late.refusal().retry_after_s == 30
    window.now_ms = 60_000
    (fresh,) = await spend(limiter, RateClass.BULK, 1, clock_ms=61_000, who=who)
    (before, fresh) = before, fresh
    assert not before.is_allowed
    assert before.refusal().retry_after_s == 60
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
        taken = await asyncio.gather(
            *(limiter.take(ALICE, HERE, RateClass.WRITE, 0) for _ in range(150))
        )
        return window.calls, sum(standing is not None and standing.is_allowed for standing in taken)

    assert asyncio.run(scenario()) == (10, 100)


async def test_calls_that_arrive_while_a_block_is_leased_lose_none_of_the_limit() -> None:
    """More at once than a block holds, then one in each turn of the loop while they wait."""
    window = Window()

    async def take(did: str, rate: str, block: int, limit: int) -> RateBlock:
        for _ in range(3):
            await asyncio.sleep(0)
        return await window.take(did, rate, block, limit)

    limiter = RateLimiter(Settings(), take)
    calls = []
    for number in range(100):
        calls.append(asyncio.create_task(limiter.take(ALICE, HERE, RateClass.WRITE, 0)))
        if number > 50:
            await asyncio.sleep(0)
    standings = await asyncio.gather(*calls)
    assert all(standing is not None and standing.is_allowed for standing in standings)
    assert window.calls == 10


async def test_the_calling_key_says_how_high_its_owners_count_may_go() -> None:
    """A low key is refused at its own limit, whichever keys have counted; a raised one goes on."""

    limiter = RateLimiter(Settings(), Window().take)
    low, raised = key_of_alice("2", write=5), key_of_alice("3", write=120)
    standings = await spend(limiter, RateClass.WRITE, 4)
    standings += await spend(limiter, RateClass.WRITE, 2, who=low)
    standings += await spend(limiter, RateClass.WRITE, 95)
    standings += await spend(limiter, RateClass.WRITE, 1)
    standings += await spend(limiter, RateClass.WRITE, 21, who=raised)
    found = [(standing.is_allowed, standing.remaining) for standing in standings]
    assert found[3:6] == [(True, 96), (True, 0), (False, 0)]
    assert found[6] == (True, 94)
    assert found[100:103] == [(True, 0), (False, 0), (True, 19)]
    assert found[-2:] == [(True, 0), (False, 0)]


def test_addresses_without_a_key_count_apart_and_not_with_owners() -> None:
    async def scenario() -> list[bool]:
        window = Window()
        limiter = RateLimiter(Settings(), window.take)
        await spend(limiter, RateClass.READ, 1_001, who=None)
        standings = await spend(limiter, RateClass.READ, 1, who=None)
        standings += await spend(limiter, RateClass.READ, 1, who=None, address=THERE)
        standings += await spend(limiter, RateClass.READ, 1)
        assert window.calls == 1, "addresses are counted without the database"
        return [standing.is_allowed for standing in standings]

    assert asyncio.run(scenario()) == [False, True, True]


async def test_a_call_that_is_given_back_is_an_addresss_again() -> None:
    limiter = RateLimiter(Settings(machine_rate=2), Window().take)
    await spend(limiter, RateClass.MACHINE, 2, who=None)
    limiter.give_back(HERE, RateClass.MACHINE, 0)
    standings = await spend(limiter, RateClass.MACHINE, 2, who=None)
    assert [standing.is_allowed for standing in standings] == [True, False]
    limiter.give_back(THERE, RateClass.MACHINE, 0)  # never counted


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
        reading = await limiter.take(free, HERE, RateClass.READ, 0)
        writes = await spend(limiter, RateClass.WRITE, 3, who=free)
        return reading, [standing.is_allowed for standing in writes]

    assert asyncio.run(scenario()) == (None, [True, True, False])


def test_headers_say_where_one_stands() -> None:
    standing = Standing(RateClass.WRITE, 100, 41, 30_500, is_allowed=True)
    assert dict(standing.headers(60_000)) == {
        b"ratelimit-policy": b'"write";q=100;w=60',
        b"ratelimit": b'"write";r=41;t=31',
        b"x-ratelimit-limit": b"100",
        b"x-ratelimit-remaining": b"41",
        b"x-ratelimit-reset": b"90",
    }


async def test_a_key_that_all_share_is_counted_by_address_alone() -> None:
    window = Window()
    limiter = RateLimiter(Settings(read_rate=2), window.take)
    free = Principal("free-tier", "free-tier", frozenset(), rate_class=BY_ADDRESS)
    here = await spend(limiter, RateClass.READ, 3, who=free)
    assert [standing.is_allowed for standing in here] == [True, True, False]
    assert (await spend(limiter, RateClass.READ, 1, who=free, address=THERE))[0].is_allowed
    assert window.calls == 0
