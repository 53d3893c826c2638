"""Judges replies and builds inputs that come in frames, as a process: `python -m` this module.

A frame of standard input is its length and one message; what is made of each goes back on standard
output: the event of a reply, inputs, or what becomes of a result that was handed in through the
API. It ends with its input, so with the process that started it. It knows no agent, no ledger and
no network. Decisions 0160, 0170.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import IO, Final, Literal

from actors.ports import DispatchOrder
from actors.process.garbage import collect_rarely
from actors.transport.wire import Wire
from actors.values.handed_in_results import HandedIn, JudgedHandIn, judge_handed_in
from actors.values.input_texts import (
    FillTexts,
    InputText,
    MappedTexts,
    MapTexts,
    fill_texts,
    map_texts,
)
from actors.values.reply_events import ReceivedReply, judge_received
from core.message import Message
from core.workflow.events import Event, Failure

LENGTH_BYTES: Final = 8
LENGTH_ORDER: Final[Literal["big"]] = "big"


class ReplyOfOrder(Message, frozen=True):
    """A reply, and the order that it answers, without its inputs."""

    order: DispatchOrder
    reply: ReceivedReply


Request = ReplyOfOrder | HandedIn | MapTexts | FillTexts
REQUESTS: Final = Wire[Request](Request)
EVENTS: Final = Wire[Event](Event)
HAND_INS: Final = Wire[JudgedHandIn](JudgedHandIn)
MAPPED: Final = Wire[MappedTexts | Failure](MappedTexts | Failure)
FILLED: Final = Wire[InputText | Failure](InputText | Failure)


def answer_frame(body: bytes) -> bytes:
    """Return the encoded answer to an encoded request."""
    match REQUESTS.decode(body):
        case ReplyOfOrder(order, reply):
            return EVENTS.encode(judge_received(order, reply))
        case MapTexts() as asked:
            return MAPPED.encode(map_texts(asked))
        case FillTexts() as asked:
            return FILLED.encode(fill_texts(asked))
        case handed_in:
            return HAND_INS.encode(judge_handed_in(handed_in))


def _main(requests: IO[bytes], answers: IO[bytes]) -> None:
    while len(length := requests.read(LENGTH_BYTES)) == LENGTH_BYTES:
        answer = answer_frame(requests.read(int.from_bytes(length, LENGTH_ORDER)))
        answers.write(len(answer).to_bytes(LENGTH_BYTES, LENGTH_ORDER))
        answers.write(answer)
        answers.flush()


if __name__ == "__main__":
    # An interrupt at the terminal goes to the whole group; the owner decides when this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    collect_rarely()
    try:
        _main(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        os._exit(0)  # the owner has ended; a flush of standard output would raise again
