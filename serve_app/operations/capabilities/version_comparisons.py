"""What one published version breaks of another, found out once: versions never change.

A comparison may hold the thread of large texts for a fifth of a second, and anyone may ask for one.
Spec: Capability version, Versioning. Decision versions-and-schemas.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from core.capabilities.schema_breaks import Break, find_breaks
from core.json_text import read_json, write_json
from core.records.api.registry.capability_versions import SCHEMA_BYTES_MAX
from ledger.capabilities.version_reads import whole_version_rows
from ledger.reads.reader import LedgerReader, RowDict
from serve_app.http.compiling import in_thread

# Comparing two versions may take as long as work on so much text, however short they are.
COMPARED_BYTES: Final = 2 * SCHEMA_BYTES_MAX
KEPT_BYTES_MAX: Final = 8 * 1024 * 1024


class VersionComparisons:
    """The comparisons that a replica has made, those of late.

    Args:
        bytes_max: of their texts together.
    """

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<VersionComparisons kept={len(self._kept)} bytes={self._bytes}>"

    async def compare(
        self, reader: LedgerReader, caller: str, former: str, later: str
    ) -> dict[str, Any]:
        """Return what a version breaks of an earlier one, as the API tells it.

        Args:
            caller: the DID that asks.
            former: the id of a published version, as `later`.
        """
        text = self._kept.get((former, later))
        if text is None:
            rows = await whole_version_rows(reader, (former, later))
            text = await in_thread(
                caller, COMPARED_BYTES, partial(_compared, rows[former], rows[later])
            )
            self._keep((former, later), text)
        found: dict[str, Any] = read_json(text)
        return found

    def _keep(self, pair: tuple[str, str], text: bytes) -> None:
        if pair in self._kept:
            return  # two requests have asked for it at once
        self._kept[pair] = text
        self._bytes += len(text)
        while self._bytes > self._bytes_max:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= len(dropped)


def schemas_of(row: RowDict) -> tuple[Any, Any]:
    """Return the input and the output schema of a version."""
    return read_json(row["input_schema"]), read_json(row["output_schema"])


def compatibility(former: str, later: str, breaks: Sequence[Break]) -> dict[str, Any]:
    """Return what a version breaks of an earlier one, as the API tells it."""
    return {
        "fromVersion": former,
        "toVersion": later,
        "isCompatible": not breaks,
        "breaks": [
            {
                "path": one.path,
                "affected": one.affected,
                "was": one.was,
                "now": one.now,
                "isDecided": one.is_decided,
            }
            for one in breaks
        ],
    }


def _compared(former: RowDict, later: RowDict) -> bytes:
    breaks = find_breaks(*schemas_of(former), *schemas_of(later))
    return write_json(compatibility(former["version"], later["version"], breaks))
