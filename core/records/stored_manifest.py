"""What requests need of a manifest that was stored, without the values of its payloads.

A manifest may be 512 KiB of small values, and building those takes tens of milliseconds, in one
call: a parser that is told which members are wanted skips the others. The manifest was judged when
it was published (`manifest.py`), so nothing is judged again. Reference: features.md (Workflows);
decision limits-and-admission.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.json import decode

from core.money import micro_from_cents, micro_from_credits


class StoredNode(Struct, rename="camel"):
    """A node as it was published, in either spelling of its capability; null means absent."""

    capability_id: str | None = None
    capability: str | None = None
    depends_on: list[str] | None = None
    selection: str | None = None

    @property
    def offered_id(self) -> str:
        """The capability as agents offer it, without the versions that the node asks for."""
        return (self.capability_id or self.capability or "").partition("@")[0]


class StoredSettings(Struct, rename="camel"):
    """The settings that a request reads."""

    max_budget_credits: float | int | str | None = None


class StoredManifest(Struct, rename="camel"):
    """A manifest as it was published."""

    nodes: dict[str, StoredNode]
    settings: StoredSettings | None = None
    max_cents: float | int | None = None

    @property
    def budget_micro(self) -> int | None:
        """The budget in micro-credits, however it was spelt, or None."""
        credits = None if self.settings is None else self.settings.max_budget_credits
        if credits is not None:
            return micro_from_credits(credits)
        return None if self.max_cents is None else micro_from_cents(int(self.max_cents))


def read_stored_manifest(text: str | bytes) -> StoredManifest:
    """Read a manifest as the ledger keeps it.

    Args:
        text: JSON, in either form of publishing as it was stored.
    """
    return decode(text, type=StoredManifest)
