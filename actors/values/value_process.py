"""Judges large replies and builds large inputs in a process beside the caller's.

Python builds the values of a JSON text in one piece, which nothing can interrupt: 1 MiB of nested
arrays holds the interpreter for 50 ms, in a thread as well. So these texts go to a child process: a
pickled call goes in, and its pickled answer comes back. The process starts with the first call,
takes one at a time, payers in turn, and is replaced when it ends or takes too long. It ends when
its socket is closed, so with its owner. An owner has one for replies and inputs, a replica one for
results that agents hand in.

`anyio.to_process` was tried: its worker imports the main module of its parent, which is all of Ray
here (25 MB and a quarter of a second more), and a cancellation while it starts leaks it.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from actors.ports import DispatchOrder
from actors.values.handed_in_results import HandedIn, JudgedHandIn, judge_handed_in
from actors.values.reply_events import ReceivedReply
from actors.values.value_child import LENGTH_BYTES, judge_reply
from core.market.sharing.fair_queue import FairQueue
from core.workflow.events import Event

log = logging.getLogger("callboard.dispatch")

# Replies up to this size cost the owner's loop a few milliseconds at most.
JUDGED_IN_LOOP_BYTES_MAX: Final = 16 * 1024
# For one call, the start of the process included. The worst of 1 MiB takes half a second.
JUDGE_TIMEOUT_S: Final = 30.0
Found = TypeVar("Found")


class ValueProcessEnded(Exception):
    """The value process ended, or did not answer, before it had answered a request."""


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """A call that waits for its turn; it is pickled when its turn has come."""

    call: Callable[[], Any]
    answer: asyncio.Future[Any]

    def fail(self, reason: str) -> None:
        """Raise `ValueProcessEnded` at the caller, unless it was answered or has given up."""
        if not self.answer.done():
            self.answer.set_exception(ValueProcessEnded(reason))


class ValueProcess:
    """Calls functions in a process of its own.

    Args:
        weight_of: a payer's weight.
    """

    def __init__(self, weight_of: Callable[[str], int]) -> None:
        self._timeout_s = JUDGE_TIMEOUT_S
        self._waiting: FairQueue[_Request, _Request] = FairQueue(weight_of)
        self._turns: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._is_closed = False
        self.judged = 0  # replies, those that were handed in included

    @property
    def pid(self) -> int | None:
        """The process, None while there is none."""
        return None if self._process is None else self._process.pid

    async def judge(
        self, order: DispatchOrder, reply: ReceivedReply, output_schema: bytes = b""
    ) -> Event:
        """Return the event of a reply.

        Args:
            output_schema: the text of its agent's outputSchema, empty for none.

        Raises:
            ValueProcessEnded: the process ended, was closed, or timed out.
        """
        # A reply is judged without the agent's secret.
        bare = replace(order.without_inputs(), secret=None)
        event = await self.call(order.payer_did, partial(judge_reply, bare, reply, output_schema))
        self.judged += 1
        return event

    async def judge_handed_in(self, owner_did: str, handed_in: HandedIn) -> JudgedHandIn:
        """Return what becomes of a result that was handed in.

        Args:
            owner_did: the agent's owner, in whose turn it is judged.

        Raises:
            ValueProcessEnded: as `judge`.
        """
        judged = await self.call(owner_did, partial(judge_handed_in, handed_in))
        self.judged += 1
        return judged

    def close(self) -> None:
        """End the process; open requests and later ones fail with `ValueProcessEnded`."""
        self._is_closed = True
        if self._turns is not None:
            self._turns.cancel()
        while (request := self._waiting.take()) is not None:
            request.fail("closed")
        self._end_process()

    async def call(self, holder: str, call: Callable[[], Found]) -> Found:
        """Return what a call returns in the process.

        Args:
            holder: in whose turn it is made.
            call: a function with its arguments, which can be pickled.

        Raises:
            ValueProcessEnded: as `judge`.
        """
        if self._is_closed:
            raise ValueProcessEnded("closed")
        loop = asyncio.get_running_loop()
        request = _Request(call, loop.create_future())
        self._waiting.put(holder, request, request)
        if self._turns is None or self._turns.done():
            self._turns = loop.create_task(self._take_turns())
        try:
            found: Found = await request.answer
            return found
        finally:
            self._waiting.drop(request)  # the caller may have given up before its turn

    async def _take_turns(self) -> None:
        while (request := self._waiting.take()) is not None:
            try:
                async with asyncio.timeout(self._timeout_s):
                    found = await self._ask(request.call)
            except Exception as error:  # the edge to the process: what it raises is the answer
                log.exception("value process failed pid=%s", self.pid)
                self._end_process()
                request.fail(repr(error))
            else:
                if not request.answer.done():
                    request.answer.set_result(found)
            finally:
                request.fail("closed")

    async def _ask(self, call: Callable[[], Any]) -> Any:
        if self._streams is None or self._streams[0].at_eof():
            self._end_process()  # it has ended since the last call
            self._streams = await self._start()
        reader, writer = self._streams
        writer.write(pickle.dumps(call))
        await writer.drain()
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
        return pickle.loads(await reader.readexactly(length))

    async def _start(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _spawn(theirs)
            return await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise

    def _end_process(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _spawn(end: socket.socket) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "actors.values.value_child"]
    return subprocess.Popen(command, stdin=end.fileno(), stdout=end.fileno())
