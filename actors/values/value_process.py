"""Judges large replies and builds large inputs in a process beside the caller's.

Python parses a JSON text without interruption: 1 MiB of nested arrays holds the interpreter lock
for 50 ms, also in a thread. Therefore large texts go to a child process, which receives a pickled
call and returns a pickled answer. The first call starts the child process. The child makes one call
at a time, and payers are served round robin. The child is replaced if it ends or takes too long. It
ends when its socket is closed, so it ends with the calling process. Each workflow owner has one
value process for replies and inputs. Each replica has one for results that agents send to
`nodeResult`.

`anyio.to_process` was tried and rejected. Its worker imports the main module of its parent, here
all of Ray (25 MB and a quarter of a second more). A cancellation during the worker's start leaks
the worker.
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

# Replies up to this size are judged in the owner's event loop, which takes a few milliseconds.
JUDGED_IN_LOOP_BYTES_MAX: Final = 16 * 1024
# The timeout of one call, including the start of the process. The slowest 1 MiB takes 0.5 s.
JUDGE_TIMEOUT_S: Final = 30.0
Found = TypeVar("Found")


class ValueProcessEnded(Exception):
    """The value process ended, was closed, or timed out before it answered a call."""


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """A call that waits in the queue. It is pickled when it is sent."""

    call: Callable[[], Any]
    answer: asyncio.Future[Any]

    def fail(self, reason: str) -> None:
        """Raise `ValueProcessEnded` at the caller, unless the call was answered or cancelled."""
        if not self.answer.done():
            self.answer.set_exception(ValueProcessEnded(reason))


class ValueProcess:
    """Calls functions in a child process.

    `judged`: the number of judged replies and handed-in results.

    Args:
        weight_of: returns a payer's weight in the fair queue of calls.
    """

    def __init__(self, weight_of: Callable[[str], int]) -> None:
        self._timeout_s = JUDGE_TIMEOUT_S
        self._waiting: FairQueue[_Request, _Request] = FairQueue(weight_of)
        self._turns: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._is_closed = False
        self.judged = 0

    @property
    def pid(self) -> int | None:
        """The id of the child process, None while there is none."""
        return None if self._process is None else self._process.pid

    async def judge(
        self, order: DispatchOrder, reply: ReceivedReply, output_schema: bytes = b""
    ) -> Event:
        """Return the event of a reply.

        Args:
            output_schema: the text of the agent's outputSchema, empty for none.

        Raises:
            ValueProcessEnded: the process ended, was closed, or timed out.
        """
        # The secret is not needed to judge a reply, so it is not sent to the child.
        bare = replace(order.without_inputs(), secret=None)
        event = await self.call(order.payer_did, partial(judge_reply, bare, reply, output_schema))
        self.judged += 1
        return event

    async def judge_handed_in(self, owner_did: str, handed_in: HandedIn) -> JudgedHandIn:
        """Return the judgement of a handed-in result.

        Args:
            owner_did: the agent's owner; the call waits in this owner's queue.

        Raises:
            ValueProcessEnded: see `judge`.
        """
        judged = await self.call(owner_did, partial(judge_handed_in, handed_in))
        self.judged += 1
        return judged

    def close(self) -> None:
        """End the process; open calls and later calls fail with `ValueProcessEnded`."""
        self._is_closed = True
        if self._turns is not None:
            self._turns.cancel()
        while (request := self._waiting.take()) is not None:
            request.fail("closed")
        self._end_process()

    async def call(self, holder: str, call: Callable[[], Found]) -> Found:
        """Make a call in the child process and return its result.

        Args:
            holder: the payer or owner in whose queue the call waits.
            call: a function with its arguments; it must be picklable.

        Raises:
            ValueProcessEnded: see `judge`.
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
            except Exception as error:  # the edge to the child: any error ends it and the call
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
            self._end_process()  # the child has ended since the last call
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
