"""Which schemas the agents of a capability have, counted as their cards come and go.

Reference: features.md (Schemas). Decision versions-and-schemas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from actors.ports import AgentEntry
from actors.values.agent_schemas import AgentSchemas

# Of one capability; where there are more, nothing is said of them.
SCHEMAS_MAX: Final = 4
TEXT_BYTES_MAX: Final = 8 * 1024


class OfferedSchemas:
    """The schemas of each capability that has some.

    Args:
        schemas: keeps their texts.
    """

    def __init__(self, schemas: AgentSchemas) -> None:
        self._schemas = schemas
        self._counts: dict[tuple[str, bool], Counter[str]] = {}

    def count(self, entry: AgentEntry, change: int) -> None:
        """Count an agent's schemas: 1, or -1 when its card goes."""
        if not entry.input_schemas and not entry.output_schemas:
            return  # as most have none
        for is_output, names in ((False, entry.input_schemas), (True, entry.output_schemas)):
            for capability_id, name in names.items():
                counts = self._counts.setdefault((capability_id, is_output), Counter())
                counts[name] += change
                if not counts[name]:
                    del counts[name]
                if not counts:
                    del self._counts[capability_id, is_output]

    def texts(self, capability_id: str, agents: int, *, is_output: bool) -> Sequence[bytes]:
        """Return the schemas that the agents of a capability have; none where one has none.

        Args:
            agents: how many offer the capability.
        """
        counts = self._counts.get((capability_id, is_output))
        if counts is None or len(counts) > SCHEMAS_MAX or counts.total() != agents:
            return ()
        return self._read(counts)

    def text(self, entry: AgentEntry, capability_id: str, *, is_output: bool) -> Sequence[bytes]:
        """Return the schema of one agent; none where it has none."""
        name = (entry.output_schemas if is_output else entry.input_schemas).get(capability_id)
        return () if name is None else self._read((name,))

    def _read(self, names: Counter[str] | Sequence[str]) -> Sequence[bytes]:
        texts = [self._schemas.kept_text(name) for name in names]
        known = [text for text in texts if text is not None and len(text) <= TEXT_BYTES_MAX]
        return known if len(known) == len(texts) else ()
