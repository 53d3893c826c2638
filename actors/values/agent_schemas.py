"""The schemas of agents' capabilities in one process: their texts, and those that are compiled.

An agent's entry and an order name a schema by the hash of its text. Texts are kept as far as they
fit, put in when a card is read; one that is not kept is read from the agent's card again. They are
compiled in a thread, once; what is compiled and small is judged by in the loop, the rest in the
value process. Cards without schemas cost nothing here. Decision versions-and-schemas.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from core.errors import NodeErrorCode, ServiceError
from core.json_text import read_json, write_json
from core.schemas.value_schema import Breach, CompiledSchemas, ValueSchema, compile_text
from core.workflow.events import Failure

TEXTS_BYTES_MAX: Final = 32 * 1024 * 1024
COMPILED_BYTES_MAX: Final = 64 * 1024 * 1024
# Of `cost * bytes`: judged in 1 ms at most, in 7 ms where it must be told what is wrong.
IN_LOOP_UNITS_MAX: Final = 50_000
RETRY_S: Final = 0.5

# Returns the JSON text of an agent's card, None of an agent that is not registered.
ReadCard = Callable[[str], Awaitable[str | None]]


async def _no_card(_: str) -> str | None:
    return None


def schema_text(schema: Any) -> bytes:
    """Return the text that a schema is named by."""
    return write_json(schema)


def schema_name(text: bytes) -> str:
    """Return the name of a schema: the hash of its text, hex digits."""
    return hashlib.sha256(text).hexdigest()


class AgentSchemas:
    """Schemas by name.

    Args:
        read_card: reads a card whose schemas are not kept.
    """

    def __init__(self, read_card: ReadCard = _no_card) -> None:
        self._read_card = read_card
        self._texts: OrderedDict[str, bytes] = OrderedDict()
        self._texts_bytes = 0
        self._compiled = CompiledSchemas(COMPILED_BYTES_MAX)
        self._compiling: dict[str, asyncio.Future[ValueSchema | None]] = {}

    def keep(self, schema: Any) -> str:
        """Keep a schema's text as far as there is room, and return its name."""
        text = schema_text(schema)
        # One text for all agents of a schema: 100,000 entries would hold as many alike.
        name = sys.intern(schema_name(text))
        if name not in self._texts:
            self._texts[name] = text
            self._texts_bytes += len(text)
            while self._texts_bytes > TEXTS_BYTES_MAX:
                _, dropped = self._texts.popitem(last=False)
                self._texts_bytes -= len(dropped)
        return name

    def kept_text(self, name: str) -> bytes | None:
        """Return the text of a schema if it is kept."""
        text = self._texts.get(name)
        if text is not None:
            self._texts.move_to_end(name)
        return text

    def is_at_hand(self, name: str, size_bytes: int) -> bool:
        """Say whether a value may be judged in this turn of the loop.

        Args:
            name: of its schema, "" for none.
            size_bytes: of its text.
        """
        if not name:
            return True
        if name not in self._compiled:
            return False
        schema = self._compiled.get(name)
        return schema is None or schema.cost * size_bytes <= IN_LOOP_UNITS_MAX

    def at_hand(self, name: str) -> ValueSchema | None:
        """Return a schema of which `is_at_hand` is true; None: any value will do."""
        return self._compiled.get(name) if name else None

    async def load(
        self, name: str, agent_did: str, capability_id: str, member: str
    ) -> tuple[str, bytes]:
        """Return the name and text of a schema, which is compiled then.

        A card that has changed since has another schema, which is what the agent goes by now: any
        value will do where it has none. Retries while the ledger is unavailable, until the caller
        gives up.

        Args:
            name: of the schema that the order names.
            member: `inputSchema` or `outputSchema`.
        """
        text = self.kept_text(name)
        while text is None:
            try:
                card = await self._read_card(agent_did)
            except ServiceError:
                await asyncio.sleep(RETRY_S)
                continue
            text = _of_card(card, capability_id, member)
            name = self.keep(read_json(text))
        if name not in self._compiled:
            await self._compile(name, text)
        return name, text

    async def _compile(self, name: str, text: bytes) -> None:
        compiling = self._compiling.get(name)
        if compiling is None:
            loop = asyncio.get_running_loop()
            compiling = loop.run_in_executor(None, compile_text, text)
            self._compiling[name] = compiling
            compiling.add_done_callback(lambda _: self._compiling.pop(name))
        # Others wait for it, too.
        compiled = await asyncio.shield(compiling)
        self._compiled.add(name, text, compiled)


def _of_card(card: str | None, capability_id: str, member: str) -> bytes:
    offered = [] if card is None else read_json(card)["capabilities"]
    found = [one.get(member) for one in offered if one["id"] == capability_id]
    return schema_text(found[0] if found and found[0] is not None else True)


def refused_result(agent_did: str, breach: Breach) -> Failure:
    """Return the failure of a result that breaks its agent's own schema."""
    message = (
        f"the result breaks the outputSchema of {agent_did} at {breach.path}: {breach.problem}"
    )
    return Failure(NodeErrorCode.OUTPUT_SCHEMA, message)
