"""The reference of a large result: its hash and size instead of its bytes.

The process that receives the result creates the reference; the process that needs the bytes
resolves it. It is never parsed from an agent's JSON, so no result can refer to another payer's
bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.message import Message


class BlobRef(Message, frozen=True):
    """`hash`: `sha256:` + hex over the result's canonical form; `size`: bytes of that form."""

    hash: str
    size: int

    def to_json(self) -> dict[str, Any]:
        """Return the reference as it is stored and shown."""
        return {"$blob": self.hash, "size": self.size}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> BlobRef:
        """Read a reference that `to_json` wrote."""
        return cls(str(stored["$blob"]), int(stored["size"]))
