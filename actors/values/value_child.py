"""Runs as the value process (`python -m` this module), and judges replies and values by schemas.

Each call comes pickled on standard input; its answer goes to standard output, after its length. The
process ends with its input, so with its owner. It knows no agent, no ledger and no network.
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
# Of the schemas that were used last; one process judges one value at a time.
_COMPILED: Final = CompiledSchemas(32 * 1024 * 1024)


def judge_reply(order: DispatchOrder, reply: ReceivedReply, output_schema: bytes) -> Event:
    """Return the event of a reply.

    Args:
        order: the order that it answers, without its inputs.
        output_schema: the text of its agent's outputSchema, empty for none.
    """
    return judge_received(order, reply, _compiled(output_schema))


def find_breach(schema_text: bytes, text: bytes) -> Breach | None:
    """Return where the value of a JSON text breaks a schema, None where it does not."""
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
    # An interrupt at the terminal goes to the whole group; the owner decides when this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    collect_rarely()
    try:
        _main(sys.stdin.buffer, sys.stdout.buffer)
    except BrokenPipeError:
        os._exit(0)  # the owner has ended; a flush of standard output would raise again
