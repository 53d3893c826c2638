"""The process in which an owner judges large replies and builds large inputs, as the owner sees it.

Python builds the values of a JSON text in one piece, which nothing can interrupt, a thread neither:
1 MiB of nested arrays holds the interpreter for 50 ms. So a large reply is judged in a process
beside the owner's, which returns the event with the result's canonical text; and inputs that are
made of many results, or large ones, are built there from texts to texts. The process is started for
the first request, takes one at a time, payers in turn, and is replaced when it ends or takes too
long; then its order fails without blame. It ends when the owner's end of its socket is closed. A
replica has one, too, which judges large results that agents hand in, agents in turn. design.md
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
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from actors.ports import DispatchOrder
from actors.values.handed_in_results import HandedIn, JudgedHandIn
from actors.values.input_texts import FillTexts, InputText, MappedTexts, MapTexts
from actors.values.reply_events import ReceivedReply
from actors.values.value_child import (
    EVENTS,
    FILLED,
    HAND_INS,
    JUDGED_TEXT,
    LENGTH_BYTES,
    LENGTH_ORDER,
    MAPPED,
    REQUESTS,
    JudgeText,
    ReplyOfOrder,
    Request,
)
from core.market.sharing.fair_queue import FairQueue
from core.schemas.value_schema import Breach
from core.workflow.events import Event, Failure

log = logging.getLogger("callboard.dispatch")

# Replies up to this size cost the owner's loop a few milliseconds at most.
JUDGED_IN_LOOP_BYTES_MAX: Final = 16 * 1024
# For a reply, the start of the process included. The worst of 1 MiB takes half a second.
JUDGE_TIMEOUT_S: Final = 30.0

_CHILD: Final = "actors.values.value_child"


class ValueProcessEnded(Exception):
    """The value process ended, or did not answer, before it had answered a request."""


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A caller's turn. `request`: written when the turn `has_come`, by the caller.

    Not before: a hundred large replies may come at once. By the caller: it is its workflow's work.
    """

    has_come: asyncio.Future[None]
    request: asyncio.Future[bytes]
    answer: asyncio.Future[bytes]

    def fail(self, error: Exception) -> None:
        """End what its caller waits for, unless it has given up."""
        awaited = self.answer if self.has_come.done() else self.has_come
        if not awaited.done() and not self.has_come.cancelled():
            awaited.set_exception(error)


class ValueProcess:
    """Judges replies, and builds inputs, in a process of its own.

    Args:
        weight_of: a payer's weight.
    """

    def __init__(self, weight_of: Callable[[str], int]) -> None:
        self._timeout_s = JUDGE_TIMEOUT_S
        self._waiting: FairQueue[_Turn, _Turn] = FairQueue(weight_of)
        self._turns: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._judged = 0
        # What is asked and not answered, whether its turn has come or not.
        self._open: set[_Turn] = set()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<ValueProcess pid={self.pid} judged={self._judged} waiting={len(self._waiting)}>"

    @property
    def pid(self) -> int | None:
        """The process, None while there is none."""
        return None if self._process is None else self._process.pid

    @property
    def judged(self) -> int:
        """How many replies were judged."""
        return self._judged

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
        asked = ReplyOfOrder(bare, reply, output_schema)
        event = EVENTS.decode(await self._answer(order.payer_did, asked))
        self._judged += 1
        return event

    async def judge_handed_in(self, owner_did: str, handed_in: HandedIn) -> JudgedHandIn:
        """Return what becomes of a result that was handed in.

        Args:
            owner_did: the agent's owner, in whose turn it is judged.

        Raises:
            ValueProcessEnded: as `judge`.
        """
        judged = HAND_INS.decode(await self._answer(owner_did, handed_in))
        self._judged += 1
        return judged

    async def map_texts(self, payer_did: str, asked: MapTexts) -> MappedTexts | Failure:
        """Return what a node maps of results. Raises ValueProcessEnded as `judge` does."""
        return MAPPED.decode(await self._answer(payer_did, asked))

    async def fill_texts(self, payer_did: str, asked: FillTexts) -> InputText | Failure:
        """Return the inputs of a node. Raises ValueProcessEnded as `judge` does."""
        return FILLED.decode(await self._answer(payer_did, asked))

    async def find_breach(self, payer_did: str, schema: bytes, text: bytes) -> Breach | None:
        """Return where the value of a text breaks a schema. Raises ValueProcessEnded as `judge`."""
        found = await self._answer(payer_did, JudgeText(schema, text))
        return JUDGED_TEXT.decode(found).breach

    async def _answer(self, holder: str, asked: Request) -> bytes:
        if self._is_closed:
            raise ValueProcessEnded("closed")
        loop = asyncio.get_running_loop()
        turn = _Turn(loop.create_future(), loop.create_future(), loop.create_future())
        self._open.add(turn)
        self._waiting.put(holder, turn, turn)
        if self._turns is None or self._turns.done():
            self._turns = loop.create_task(self._take_turns())
        try:
            await turn.has_come
            turn.request.set_result(REQUESTS.encode(asked))
            return await turn.answer
        finally:
            self._open.discard(turn)
            self._waiting.drop(turn)  # its caller may have given up before its turn,
            turn.request.cancel()  # or in it

    def close(self) -> None:
        """End the process; open requests and later ones fail with `ValueProcessEnded`."""
        self._is_closed = True
        if self._turns is not None:
            self._turns.cancel()
        for turn in self._open:
            turn.fail(ValueProcessEnded("closed"))
        self._end_process()

    async def _take_turns(self) -> None:
        while (turn := self._waiting.take()) is not None:
            if turn.has_come.done():
                continue  # its caller has given up
            turn.has_come.set_result(None)
            await asyncio.wait([turn.request])
            if turn.request.cancelled():
                continue  # its caller has given up since, or cannot write it
            try:
                async with asyncio.timeout(self._timeout_s):
                    found = await self._ask(turn.request.result())
            except Exception as error:  # the edge to the process: what it raises is the answer
                log.exception("value process failed pid=%s", self.pid)
                self._end_process()
                turn.fail(ValueProcessEnded(repr(error)))
            else:
                if not turn.answer.done():
                    turn.answer.set_result(found)

    async def _ask(self, request: bytes) -> bytes:
        if self._streams is None or self._streams[0].at_eof():
            self._end_process()  # it has ended since the last request
            self._streams = await self._start()
        reader, writer = self._streams
        writer.writelines((len(request).to_bytes(LENGTH_BYTES, LENGTH_ORDER), request))
        await writer.drain()
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), LENGTH_ORDER)
        return await reader.readexactly(length)

    async def _start(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _spawn(theirs.fileno())
            return await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            raise

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
