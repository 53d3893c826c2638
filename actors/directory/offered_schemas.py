"""Counts the schemas of each capability's agents.

A publish checks its mappings against these schemas. Reference: features.md (Schemas). Decision
versions-and-schemas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from actors.ports import AgentEntry
from actors.values.agent_schemas import AgentSchemas

# With more or larger schemas than these limits, the schemas of a capability count as unknown.
SCHEMAS_MAX: Final = 4
TEXT_BYTES_MAX: Final = 8 * 1024


class OfferedSchemas:
    """The schemas of each capability's agents; capabilities without schemas are left out.

    Args:
        schemas: the cache of the schemas' texts.
    """

    def __init__(self, schemas: AgentSchemas) -> None:
        self._schemas = schemas
        self._counts: dict[tuple[str, bool], Counter[str]] = {}

    def count(self, entry: AgentEntry, change: int) -> None:
        """Count the schemas of an agent.

        Args:
            change: 1 when the card is added, -1 when it is removed.
        """
        if not entry.input_schemas and not entry.output_schemas:
            return  # the usual case
        for is_output, names in ((False, entry.input_schemas), (True, entry.output_schemas)):
            for capability_id, name in names.items():
                counts = self._counts.setdefault((capability_id, is_output), Counter())
                counts[name] += change
                if not counts[name]:
                    del counts[name]
                if not counts:
                    del self._counts[capability_id, is_output]

    def texts(self, capability_id: str, agents: int, *, is_output: bool) -> Sequence[bytes]:
        """Return the texts of the schemas of a capability's agents.

        The result is empty if an agent has no schema, because this agent may take or return any
        value. It is also empty if the schemas exceed the limits.

        Args:
            agents: the number of agents that offer the capability.
        """
        counts = self._counts.get((capability_id, is_output))
        if counts is None or len(counts) > SCHEMAS_MAX or counts.total() != agents:
            return ()
        return self._read(counts)

    def text(self, entry: AgentEntry, capability_id: str, *, is_output: bool) -> Sequence[bytes]:
        """Return the text of one agent's schema; empty if it has none."""
        name = (entry.output_schemas if is_output else entry.input_schemas).get(capability_id)
        return () if name is None else self._read((name,))

    def _read(self, names: Counter[str] | Sequence[str]) -> Sequence[bytes]:
        texts = [self._schemas.kept_text(name) for name in names]
        known = [text for text in texts if text is not None and len(text) <= TEXT_BYTES_MAX]
        return known if len(known) == len(texts) else ()
