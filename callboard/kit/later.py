"""A result that comes later: what a handler returns instead of one, and keeps until it has one.

Reference: features.md (Dispatch).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Later:
    """The dispatch to which a result will belong.

    `result_id` is a credential: a caller that has it can hand the result in. `to_json` and
    `from_json` let an agent keep it beyond its own process.
    """

    event_id: str
    workflow_id: str
    node_id: str
    result_id: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object from which `from_json` makes an equal value."""
        return asdict(self)

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Later:
        """Make it from what `to_json` returned."""
        return cls(**kept)
