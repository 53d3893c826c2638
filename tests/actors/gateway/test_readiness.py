"""Whether a replica serves does not hang on processes that it does not need for that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from actors.gateway.gateway import PING_TIMEOUT_S
from tests.actors.gateway.served import gateway_of


class Database:
    """A reader of rows that answers, or does not."""

    is_away = False

    async def ping(self) -> None:
        """Answer, or not."""
        if self.is_away:
            raise ConnectionError("away")

    async def close(self) -> None:
        """Do nothing."""


async def silent() -> None:
    """Stand for a process that says nothing."""
    await asyncio.Event().wait()


async def test_a_replica_is_ready_while_other_processes_do_not_answer(tmp_path: Path) -> None:
    """While the machine of the ledger was lost, each other machine answered after 2 s: by then its
    callers had left."""
    async with gateway_of(tmp_path) as gateway:
        made: Any = gateway
        made.reader = database = Database()
        made._ask_timekeeper = silent
        made._ask_ledgers = dict.fromkeys(gateway._ask_ledgers, silent)
        async with asyncio.timeout(PING_TIMEOUT_S / 2):
            assert await gateway.is_ready()
        database.is_away = True
        async with asyncio.timeout(60):
            while await gateway.is_ready():
                await asyncio.sleep(0.01)
