"""A caller that leaves half way leaves no socket behind, even while its task is referred to."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable

import pytest

from ledger.connections.connect import connect
from ledger.connections.pools import Pool
from ledger.schema import READER_ROLE
from tests.conftest import Database

STEP_S = 0.0003


def sockets() -> int:
    """Count the sockets of this process."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            continue  # the listing's own
    return count


async def open_and_close(url: str) -> None:
    await (await connect(url)).close()


async def open_pool_and_close(url: str) -> None:
    engine = Pool(url, READER_ROLE, "test", size=1, timeout_s=5).engine
    try:
        async with engine.connect():
            pass
    finally:
        await engine.dispose()


@pytest.mark.parametrize("opens", [open_and_close, open_pool_and_close])
async def test_a_caller_that_leaves_half_way_leaves_no_socket(
    database: Database, opens: Callable[[str], Awaitable[None]]
) -> None:
    await opens(database.service_url)
    before, left, kept = sockets(), [], []
    gc.disable()
    try:
        while not kept or kept[-1].cancelled():
            kept.append(asyncio.ensure_future(opens(database.service_url)))
            await asyncio.sleep(STEP_S * len(kept))
            kept[-1].cancel()
            await asyncio.wait([kept[-1]])
            left.append(sockets() - before)
    finally:
        gc.enable()
    assert len(left) > 3
    assert max(left) == 0, left
