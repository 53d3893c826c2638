"""A process's cache of the agents' schemas: their texts and their compiled forms.

An agent's directory entry and a dispatch name a schema by the hash of its text. When a card is
read, the texts of its schemas are cached, up to a limit. A text that is not cached is read from the
agent's card again. A schema is compiled once, in a thread. Small values are judged in the event
loop by compiled schemas, all other values in the value process. Cards without schemas cost nothing.
Decision versions-and-schemas.
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
# The largest `cost * bytes` of a value that is judged in the event loop. This takes at most 1 ms,
# or 7 ms if the value breaks the schema and the error must be described.
IN_LOOP_UNITS_MAX: Final = 50_000
RETRY_S: Final = 0.5

# Returns the JSON text of an agent's card, None for an agent that is not registered.
ReadCard = Callable[[str], Awaitable[str | None]]


async def _no_card(_: str) -> str | None:
    return None


def schema_text(schema: Any) -> bytes:
    """Return the canonical text of a schema, whose hash is the schema's name."""
    return write_json(schema)


def schema_name(text: bytes) -> str:
    """Return the name of a schema: the SHA-256 hash of its text, in hex digits."""
    return hashlib.sha256(text).hexdigest()


class AgentSchemas:
    """The cached schemas, by name.

    Args:
        read_card: reads the card of an agent whose schema is not cached.
    """

    def __init__(self, read_card: ReadCard = _no_card) -> None:
        self._read_card = read_card
        self._texts: OrderedDict[str, bytes] = OrderedDict()
        self._texts_bytes = 0
        self._compiled = CompiledSchemas(COMPILED_BYTES_MAX)
        self._compiling: dict[str, asyncio.Future[ValueSchema | None]] = {}

    def keep(self, schema: Any) -> str:
        """Cache a schema's text and return its name; drop the least recently used texts."""
        text = schema_text(schema)
        # Interned, so that 100,000 entries with the same schema share one name in memory.
        name = sys.intern(schema_name(text))
        if name not in self._texts:
            self._texts[name] = text
            self._texts_bytes += len(text)
            while self._texts_bytes > TEXTS_BYTES_MAX:
                _, dropped = self._texts.popitem(last=False)
                self._texts_bytes -= len(dropped)
        return name

    def kept_text(self, name: str) -> bytes | None:
        """Return the text of a schema, None if it is not cached."""
        text = self._texts.get(name)
        if text is not None:
            self._texts.move_to_end(name)
        return text

    def is_at_hand(self, name: str, size_bytes: int) -> bool:
        """Say whether the schema is compiled, and cheap enough to judge a value in the event loop.

        Args:
            name: the name of the schema, "" for none.
            size_bytes: the size of the value's text.
        """
        if not name:
            return True
        if name not in self._compiled:
            return False
        schema = self._compiled.get(name)
        return schema is None or schema.cost * size_bytes <= IN_LOOP_UNITS_MAX

    def at_hand(self, name: str) -> ValueSchema | None:
        """Return a schema for which `is_at_hand` is true; None if any value is valid."""
        return self._compiled.get(name) if name else None

    async def load(
        self, name: str, agent_did: str, capability_id: str, member: str
    ) -> tuple[str, bytes]:
        """Return the name and text of a schema, after compiling it.

        If the text is not cached, it is read from the agent's current card. The card may have
        changed since the dispatch was made. Then the card's current schema applies; if the card has
        no schema now, any value is valid. While the ledger is unavailable, the read is retried
        until the caller is cancelled.

        Args:
            name: the schema's name in the dispatch.
            agent_did: the agent.
            capability_id: the capability to which the schema belongs.
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
        # Shielded, because other callers may wait for the same compilation.
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
