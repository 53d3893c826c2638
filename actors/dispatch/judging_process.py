"""The process in which an owner judges large replies, as the owner sees it; a replica has one, too.

Python builds the values of a JSON text in one piece, which nothing can interrupt, a thread neither:
1 MiB of nested arrays holds the interpreter for 50 ms. So a large reply is judged in a process
beside the owner's, which returns the event with the result's canonical text. The process is started
for the first large reply, judges one reply at a time, payers in turn, and is replaced when it ends
or takes too long; then its order fails without blame. It ends when the owner's end of its socket is
closed. A replica judges large results that agents hand in the same way, agents in turn. design.md
section 3 (no long loop turn). Decisions 0160, 0170.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from actors.dispatch.handed_in_results import HandedIn, JudgedHandIn
from actors.dispatch.judging_child import (
    EVENTS,
    HAND_INS,
    LENGTH_BYTES,
    LENGTH_ORDER,
    REPLIES,
    ReplyOfOrder,
)
from actors.dispatch.reply_events import ReceivedReply
from actors.ports import DispatchOrder
from core.market.sharing.fair_queue import FairQueue
from core.workflow.events import Event

log = logging.getLogger("callboard.dispatch")

# Replies up to this size cost the owner's loop a few milliseconds at most.
HERE_BYTES_MAX: Final = 16 * 1024
# For a reply, the start of the process included. The worst of 1 MiB takes half a second.
JUDGE_TIMEOUT_S: Final = 30.0

_CHILD: Final = "actors.dispatch.judging_child"


class JudgingEnded(Exception):
    """The judging process ended, or did not answer, before it had judged a reply."""


class JudgingProcess:
    """Judges replies in a process of its own.

    Args:
        weight_of: a payer's weight.
        timeout_s: for one reply.
    """

    def __init__(
        self, weight_of: Callable[[str], int], *, timeout_s: float = JUDGE_TIMEOUT_S
    ) -> None:
        self._timeout_s = timeout_s
        self._waiting: FairQueue[asyncio.Future[bytes], tuple[bytes, asyncio.Future[bytes]]] = (
            FairQueue(weight_of)
        )
        self._turns: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._judged = 0

    def __repr__(self) -> str:
        return f"<JudgingProcess pid={self.pid} judged={self._judged} waiting={len(self._waiting)}>"

    @property
    def pid(self) -> int | None:
        """The process, None while there is none."""
        return None if self._process is None else self._process.pid

    @property
    def judged(self) -> int:
        """How many replies were judged."""
        return self._judged

    async def judge(self, order: DispatchOrder, reply: ReceivedReply) -> Event:
        """Return the event of a reply; that of a success has `result_json` and no `result`.

        Raises:
            JudgingEnded: the process ended or timed out.
        """
        # What a reply is judged by: no inputs, which may be large, and no secret.
        bare = replace(order, inputs={}, parents={}, large=None, secret=None)
        request = REPLIES.encode(ReplyOfOrder(bare, reply))
        return EVENTS.decode(await self._answer(order.payer_did, request))

    async def judge_handed_in(self, agent: str, handed_in: HandedIn) -> JudgedHandIn:
        """Return what becomes of a result that was handed in.

        Args:
            agent: in whose turn it is judged.

        Raises:
            JudgingEnded: the process ended or timed out.
        """
        return HAND_INS.decode(await self._answer(agent, REPLIES.encode(handed_in)))

    async def _answer(self, holder: str, request: bytes) -> bytes:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.put(holder, answer, (request, answer))
        if self._turns is None or self._turns.done():
            self._turns = asyncio.get_running_loop().create_task(self._take_turns())
        try:
            return await answer
        finally:
            self._waiting.drop(answer)  # whoever waits for it has given up before its turn

    def close(self) -> None:
        """End the process."""
        if self._turns is not None:
            self._turns.cancel()
        self._end_process()

    async def _take_turns(self) -> None:
        while (taken := self._waiting.take()) is not None:
            request, answer = taken
            try:
                async with asyncio.timeout(self._timeout_s):
                    event = await self._ask(request)
            except (OSError, EOFError, TimeoutError) as error:
                log.error("judging failed pid=%s error=%r", self.pid, error)
                self._end_process()
                if not answer.done():
                    answer.set_exception(JudgingEnded(repr(error)))
            else:
                self._judged += 1
                if not answer.done():
                    answer.set_result(event)

    async def _ask(self, request: bytes) -> bytes:
        if self._streams is None:
            self._streams = await self._start()
        reader, writer = self._streams
        writer.write(len(request).to_bytes(LENGTH_BYTES, LENGTH_ORDER))
        writer.write(request)
        await writer.drain()
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), LENGTH_ORDER)
        return await reader.readexactly(length)

    async def _start(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = _spawn(theirs.fileno())
        return await asyncio.open_unix_connection(sock=ours)

    def _end_process(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            self._process = None


def _spawn(end: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", _CHILD], stdin=end, stdout=end)
