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
from actors.values.agent_schemas import schema_name
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
from core.json_text import read_json
from core.message import Message
from core.schemas.value_schema import Breach, CompiledSchemas, ValueSchema, compile_text
from core.workflow.events import Event, Failure

LENGTH_BYTES: Final = 8
LENGTH_ORDER: Final[Literal["big"]] = "big"


class ReplyOfOrder(Message, frozen=True):
    """A reply, and the order that it answers, without its inputs.

    `output_schema`: the text of the schema that the order names, empty where it names none.
    """

    order: DispatchOrder
    reply: ReceivedReply
    output_schema: bytes = b""


class JudgeText(Message, frozen=True):
    """Asks whether the value of a text breaks a schema; both are JSON texts."""

    schema: bytes
    text: bytes


class JudgedText(Message, frozen=True):
    """Where the value breaks the schema, None where it does not."""

    breach: Breach | None = None


Request = ReplyOfOrder | HandedIn | MapTexts | FillTexts | JudgeText
REQUESTS: Final = Wire[Request](Request)
EVENTS: Final = Wire[Event](Event)
HAND_INS: Final = Wire[JudgedHandIn](JudgedHandIn)
MAPPED: Final = Wire[MappedTexts | Failure](MappedTexts | Failure)
FILLED: Final = Wire[InputText | Failure](InputText | Failure)
JUDGED_TEXT: Final = Wire[JudgedText](JudgedText)
# Of the schemas that were judged by last; one process judges at a time.
_COMPILED: Final = CompiledSchemas(32 * 1024 * 1024)


def answer_frame(body: bytes) -> bytes:
    """Return the encoded answer to an encoded request."""
    match REQUESTS.decode(body):
        case ReplyOfOrder(order, reply, output_schema):
            return EVENTS.encode(judge_received(order, reply, _compiled(output_schema)))
        case JudgeText(schema_text, text):
            schema = _compiled(schema_text)
            breach = None
            if schema is not None:
                breach = schema.find_breach(read_json(text), len(text))
            return JUDGED_TEXT.encode(JudgedText(breach))
        case MapTexts() as asked:
            return MAPPED.encode(map_texts(asked))
        case FillTexts() as asked:
            return FILLED.encode(fill_texts(asked))
        case handed_in:
            return HAND_INS.encode(judge_handed_in(handed_in))


def _compiled(text: bytes) -> ValueSchema | None:
    if not text:
        return None
    name = schema_name(text)
    if name not in _COMPILED:
        _COMPILED.add(name, text, compile_text(text))
    return _COMPILED.get(name)


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
