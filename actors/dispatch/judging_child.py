"""Judges replies that come in frames on standard input, as a process: `python -m` this module.

A frame is its length and one message; the event of each reply, or what becomes of a result that was
handed in through the API, goes back on standard output. It ends with its input, so with the process
that started it. It knows no agent, no ledger and no network.
Decisions 0160, 0170.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import IO, Final, Literal

from msgspec.structs import replace

from actors.dispatch.handed_in_results import HandedIn, JudgedHandIn, judge_handed_in
from actors.dispatch.reply_events import ReceivedReply, judge_received
from actors.ports import DispatchOrder
from actors.process.garbage import collect_rarely
from actors.transport.wire import Wire
from core.message import Message
from core.workflow.events import AttemptSucceeded, Event

LENGTH_BYTES: Final = 8
LENGTH_ORDER: Final[Literal["big"]] = "big"


class ReplyOfOrder(Message, frozen=True):
    """A reply, and the order that it answers, without its inputs."""

    order: DispatchOrder
    reply: ReceivedReply


REPLIES: Final = Wire[ReplyOfOrder | HandedIn](ReplyOfOrder | HandedIn)
EVENTS: Final = Wire[Event](Event)
HAND_INS: Final = Wire[JudgedHandIn](JudgedHandIn)


def judge_frame(body: bytes) -> bytes:
    """Return the encoded event of an encoded reply; its `result_json` stands for its result.

    Of a result that was handed in: what becomes of it.
    """
    asked = REPLIES.decode(body)
    if isinstance(asked, HandedIn):
        return HAND_INS.encode(judge_handed_in(asked))
    event = judge_received(asked.order, asked.reply)
    if isinstance(event, AttemptSucceeded):
        event = replace(event, result=None)
    return EVENTS.encode(event)


def _main(requests: IO[bytes], answers: IO[bytes]) -> None:
    while len(length := requests.read(LENGTH_BYTES)) == LENGTH_BYTES:
        event = judge_frame(requests.read(int.from_bytes(length, LENGTH_ORDER)))
        answers.write(len(event).to_bytes(LENGTH_BYTES, LENGTH_ORDER) + event)
        answers.flush()


if __name__ == "__main__":
    # An interrupt at the terminal goes to the whole group; the owner decides when this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    collect_rarely()
    try:
        _main(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        os._exit(0)  # the owner has ended; a flush of standard output would raise again
