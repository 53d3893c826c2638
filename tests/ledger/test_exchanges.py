"""Exchanges past the driver's cursors: answers that come in parts, and lines that break."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.pq import ConnStatus, ExecStatus

from ledger.connections.exchanges import receive

pytestmark = pytest.mark.anyio

DEADLINE_S = 60.0


class Line:
    """Stands for libpq's connection: each byte that arrives is a part of the answer.

    The answer is one result, and, with the last byte, that the server is ready.
    """

    def __init__(self, on_broken: Callable[[int], object] | None = None) -> None:
        self.here, self.there = socket.socketpair()
        self.here.setblocking(False)
        self.socket = self.here.fileno()
        self.status = ConnStatus.OK
        self._on_broken = on_broken
        self._parts = 0
        self._results: list[Any] = [SimpleNamespace(status=ExecStatus.TUPLES_OK), None]

    def flush(self) -> int:
        """Say that all was sent."""
        return 0

    def consume_input(self) -> None:
        """Take a part; a connection that has ended is closed, as by libpq."""
        try:
            part = self.here.recv(1)
        except BlockingIOError:
            return
        if part:
            self._parts += 1
            return
        self.status = ConnStatus.BAD
        self.here.close()
        if self._on_broken is not None:
            asyncio.get_running_loop().call_soon(self._on_broken, self.socket)
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    def is_busy(self) -> int:
        """Say whether the next result would be waited for."""
        return int(self._parts <= 2 - len(self._results))

    def get_result(self) -> Any:
        """Return the next result: libpq waits for it, and all of the process with it."""
        assert not self.is_busy(), "the process stands still"
        return self._results.pop(0)


async def test_the_rest_of_an_answer_is_waited_for_beside_other_tasks() -> None:
    """libpq waited for it: a server that fell silent there stopped the process."""
    line = Line()
    async with asyncio.timeout(DEADLINE_S):
        answer = asyncio.ensure_future(receive(line, line.socket))  # type: ignore[arg-type]
        line.there.send(b"..")
        assert (await answer).status is ExecStatus.TUPLES_OK
    assert not asyncio.get_running_loop().remove_reader(line.socket)
    line.here.close()
    line.there.close()


async def test_the_number_of_a_socket_that_was_lost_is_left_to_who_has_it_next() -> None:
    """Their answer was never read."""
    loop = asyncio.get_running_loop()
    taken: set[int] = set()

    def take(number: int) -> None:
        ends = os.pipe()
        os.dup2(ends[0], number)
        loop.add_reader(number, list)
        taken.update((number, *ends))

    line = Line(on_broken=take)
    line.there.close()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(psycopg.OperationalError):
            await receive(line, line.socket)  # type: ignore[arg-type]
    assert loop.remove_reader(line.socket)
    for one in taken:
        os.close(one)


async def test_an_answer_of_which_the_loop_does_not_tell_is_found() -> None:
    """uvloop lost sight of a connection; its turn was held for ever, and no read of it ended."""
    line = Line()
    async with asyncio.timeout(DEADLINE_S):
        answer = asyncio.ensure_future(receive(line, line.socket))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert asyncio.get_running_loop().remove_reader(line.socket)
        line.there.send(b"..")
        assert (await answer).status is ExecStatus.TUPLES_OK
    line.here.close()
    line.there.close()
