"""The main module of the value process (`python -m actors.values.value_child`).

It receives pickled calls on standard input. For each call it writes the length of the pickled
answer and the answer to standard output. The process ends when its input is closed, so it ends with
the process that started it. It uses no agent, no ledger and no network.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import IO, Final

from actors.ports import DispatchOrder
from actors.process.startup import collect_rarely
from actors.values.agent_schemas import schema_name
from actors.values.reply_events import ReceivedReply, judge_received
from core.json_text import read_json
from core.schemas.value_schema import Breach, CompiledSchemas, ValueSchema, compile_text
from core.workflow.events import Event

LENGTH_BYTES: Final = 8
# The cache of recently used schemas. It needs no lock: the process judges one value at a time.
_COMPILED: Final = CompiledSchemas(32 * 1024 * 1024)


def judge_reply(order: DispatchOrder, reply: ReceivedReply, output_schema: bytes) -> Event:
    """Return the event of a reply.

    Args:
        order: the dispatch that the reply answers, without its inputs.
        reply: the reply as it was received.
        output_schema: the text of the agent's outputSchema, empty for none.
    """
    return judge_received(order, reply, _compiled(output_schema))


def find_breach(schema_text: bytes, text: bytes) -> Breach | None:
    """Return where the value of a JSON text breaks a schema; None: the value is valid."""
    schema = _compiled(schema_text)
    return None if schema is None else schema.find_breach(read_json(text), len(text))


def _compiled(text: bytes) -> ValueSchema | None:
    if not text:
        return None
    name = schema_name(text)
    if name not in _COMPILED:
        _COMPILED.add(name, text, compile_text(text))
    return _COMPILED.get(name)


def _main(calls: IO[bytes], answers: IO[bytes]) -> None:
    while True:
        try:
            call = pickle.load(calls)
        except EOFError:
            return
        answer = pickle.dumps(call())
        answers.write(len(answer).to_bytes(LENGTH_BYTES, "big") + answer)
        answers.flush()


if __name__ == "__main__":
    # Ctrl-C at a terminal interrupts the whole process group. This process must ignore it: the
    # process that started it decides when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    collect_rarely()
    try:
        _main(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        os._exit(0)  # the parent has ended; a normal exit would flush standard output and raise
