"""Look-ups at a name server that answers some names, denies others and ignores the rest."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from core.market.sharing.fair_share import ALONE
from federation.name_resolver import (
    ADDRESSES_MAX,
    CACHED_MAX,
    LOOKUPS_ROOM,
    NameResolver,
    NameUnavailable,
)
from tests.federation.name_servers import NameServer, name_server

ATTACKER, OTHER = "did:x:attacker", "did:x:other"
# What one payer alone may look up at once.
SHARE = LOOKUPS_ROOM * ALONE // (ALONE + 1)


@asynccontextmanager
async def scene() -> AsyncIterator[tuple[NameServer, NameResolver]]:
    """Run a name server and a resolver that asks it."""
    async with name_server() as server:
        names = NameResolver([server.address])
        try:
            yield server, names
        finally:
            names.close()


async def begin_slow(names: NameResolver, count: int) -> list[asyncio.Task[object]]:
    """Begin look-ups of names that are never answered."""
    begun: list[asyncio.Task[object]] = [
        asyncio.create_task(names.resolve(f"x{number}.slow.test", 80, ATTACKER))
        for number in range(count)
    ]
    await asyncio.sleep(0)
    return begun


async def test_names_that_are_never_answered_delay_no_other() -> None:
    async with scene() as (_, names):
        slow = await begin_slow(names, 64)
        for number in range(3):
            (found,) = await names.resolve(f"a{number}.good.test", 80, OTHER)
            assert found[4] == ("127.0.0.1", 80)
        assert not any(task.done() for task in slow)
        names.close()
        await asyncio.gather(*slow, return_exceptions=True)


@pytest.mark.slow
async def test_a_name_that_is_answered_late_is_found_although_others_were_answered_fast() -> None:
    """c-ares learns how fast answers come: it gave up after 2.5 s, which was the agent's fault."""
    async with scene() as (_, names):
        for number in range(20):
            await names.resolve(f"a{number}.good.test", 80, OTHER)
        (found,) = await names.resolve("a.late.test", 80, OTHER)
        assert found[4] == ("127.0.0.1", 80)


async def test_a_payers_look_ups_leave_room_for_anothers() -> None:
    async with scene() as (server, names):
        slow = await begin_slow(names, SHARE + 1)
        with pytest.raises(NameUnavailable):
            await names.resolve("a.good.test", 80, ATTACKER)
        assert await names.resolve("a.good.test", 80, OTHER)
        refused = [task for task in slow if task.done()]
        assert len(refused) <= 1
        names.close()
        await asyncio.gather(*slow, return_exceptions=True)
    assert len(set(server.asked) & {"a.good.test"}) == 1


async def test_requests_at_the_same_time_share_a_look_up_which_is_kept() -> None:
    async with scene() as (server, names):
        together = [names.resolve("a.good.test", 80, payer) for payer in (ATTACKER, OTHER)]
        first, second = await asyncio.gather(*together)
        assert first == second == await names.resolve("a.good.test", 80)
    assert server.asked.count("a.good.test") == 2  # IPv4 and IPv6


async def test_a_name_that_is_denied_has_failed() -> None:
    async with scene() as (_, names):
        with pytest.raises(socket.gaierror):
            await names.resolve("absent.test", 80)


async def test_a_failure_is_the_names_only_while_the_name_servers_are_at_work() -> None:
    async with scene() as (server, names):
        server.is_broken = True
        with pytest.raises(NameUnavailable):
            await names.resolve("a.good.test", 80)
        server.is_broken = False
        with pytest.raises(socket.gaierror):
            await names.resolve("absent.test", 80)
        assert names.is_answered
        with pytest.raises(socket.gaierror):
            await names.resolve("a.broken.test", 80)


async def test_a_question_that_cannot_be_sent_says_nothing_of_the_name() -> None:
    names = NameResolver(["255.255.255.255"])  # refused at once, as where the network is down
    for _ in range(2):
        with pytest.raises(NameUnavailable):
            await names.resolve("a.test", 80)
        assert await names.resolve("localhost", 80), "the hosts file needs no question"
    names.close()


@pytest.mark.parametrize("host", [".a.test", "a..test", "x" * 64, "\ud800"])
async def test_what_can_be_no_name_has_no_address(host: str) -> None:
    async with scene() as (_, names):
        with pytest.raises(socket.gaierror):
            await names.resolve(host, 80)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_an_address_and_this_machines_own_name_need_no_name_server(host: str) -> None:
    async with scene() as (server, names):
        server.is_silent = True
        found = await names.resolve(host, 80)
        assert not names.is_answered
    assert {info[4][0] for info in found} <= {"127.0.0.1", "::1"}
    assert not {name for name in server.asked if not name.endswith(".invalid")}


async def test_a_name_has_a_bounded_number_of_addresses() -> None:
    async with scene() as (_, names):
        assert len(await names.resolve("a.many.test", 80)) == ADDRESSES_MAX


async def test_the_resolvers_cache_is_emptied_when_it_is_full() -> None:
    async with scene() as (server, names):
        await names.resolve("a.good.test", 1)
        await names.resolve("a.good.test", 2)
        assert server.asked.count("a.good.test") == 2  # IPv4 and IPv6, once
        for number in range(CACHED_MAX):
            await names.resolve(f"b{number}.good.test", 80)
        for port in range(3, 1_000):  # it is emptied in a thread
            await names.resolve("a.good.test", port)
            if server.asked.count("a.good.test") > 2:
                break
    assert server.asked.count("a.good.test") == 4


async def test_a_closed_resolver_ends_its_look_ups() -> None:
    async with scene() as (_, names):
        (slow,) = await begin_slow(names, 1)
        names.close()
        with pytest.raises(asyncio.CancelledError):
            await slow
