"""What versions break of others is found out once, as far as there is room."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest

from ledger.reads.reader import LedgerReader
from serve_app.operations.capabilities.version_comparisons import VersionComparisons

pytestmark = pytest.mark.anyio

NEEDS_TEXT = orjson.dumps({"type": "object", "required": ["text"]}).decode()


class Reader:
    """Stands for the table of versions, and counts its reads."""

    def __init__(self) -> None:
        self.reads = 0

    async def rows(self, _: object) -> list[dict[str, Any]]:
        """Return three versions, the last of which needs more than the others."""
        self.reads += 1
        inputs = {"1.0.0": "{}", "1.1.0": "{}", "2.0.0": NEEDS_TEXT}
        return [
            {"id": f"cap@{number}", "version": number, "input_schema": text, "output_schema": "{}"}
            for number, text in inputs.items()
        ]


async def compared(comparisons: VersionComparisons, reader: Reader, *pair: str) -> dict[str, Any]:
    """Compare two versions."""
    former, later = (f"cap@{number}" for number in pair)
    return await comparisons.compare(cast(LedgerReader, reader), "did:x:a", former, later)


async def test_a_pair_of_versions_is_compared_once() -> None:
    """Each negotiation compared up to eight, a fifth of a second each, for all replies after it."""
    reader, comparisons = Reader(), VersionComparisons()
    first = await compared(comparisons, reader, "1.1.0", "2.0.0")
    assert [one["path"] for one in first["breaks"]] == ["inputSchema.text"]
    first["breaks"].clear()  # what one reply does with it is its own
    again = await compared(comparisons, reader, "1.1.0", "2.0.0")
    assert (again["isCompatible"], len(again["breaks"]), reader.reads) == (False, 1, 1)
    assert (await compared(comparisons, reader, "1.0.0", "1.1.0"))["isCompatible"]
    assert reader.reads == 2


async def test_the_oldest_comparison_goes_where_there_is_no_room() -> None:
    reader, comparisons = Reader(), VersionComparisons(bytes_max=100)
    for _ in range(2):
        await compared(comparisons, reader, "1.0.0", "1.1.0")
        await compared(comparisons, reader, "1.0.0", "2.0.0")
    assert reader.reads == 4
    await compared(comparisons, reader, "1.0.0", "1.1.0")
    assert reader.reads == 5
    await compared(comparisons, reader, "1.0.0", "1.1.0")
    assert reader.reads == 5
