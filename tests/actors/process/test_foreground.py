"""Single requests pass bulks, and a bulk goes on all the same."""

from __future__ import annotations

import asyncio

from actors.process.foreground import LET_PASS_S, Foreground
from actors.process.slices import Slices


async def test_nothing_waits_when_nothing_else_is_under_way() -> None:
    foreground = Foreground()
    assert not foreground.is_used
    async with asyncio.timeout(60):
        await foreground.let_pass()


async def test_a_bulk_goes_on_as_soon_as_the_last_single_request_is_done() -> None:
    foreground = Foreground()
    first, second = asyncio.Event(), asyncio.Event()

    async def single(done: asyncio.Event) -> None:
        with foreground:
            await done.wait()

    singles = [asyncio.create_task(single(done)) for done in (first, second)]
    await asyncio.sleep(0)
    waiting = asyncio.create_task(foreground.let_pass())
    await asyncio.sleep(0)
    first.set()
    await singles[0]
    assert foreground.is_used
    assert not waiting.done()
    second.set()
    await asyncio.gather(*singles, waiting)
    assert foreground.is_used, "a moment ago one was under way"


async def test_a_slice_waits_for_single_requests_only_so_long() -> None:
    foreground = Foreground()
    slices = Slices(0, foreground=foreground, now_ns=lambda: 0)
    loop = asyncio.get_running_loop()
    with foreground:
        began_s = loop.time()
        async with asyncio.timeout(60):
            await slices.pause()
        assert loop.time() - began_s >= LET_PASS_S
