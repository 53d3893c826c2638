"""A large result's stand-in: its hash and size instead of its bytes.

Made by whoever receives the result, resolved by whoever needs it. It never arises from reading
JSON of an agent, so that no result can name somebody else's bytes. design.md section 3 (Large
values).
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
