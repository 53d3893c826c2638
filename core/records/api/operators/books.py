"""The check of the books. Reference: money.md (Checking the books)."""

from __future__ import annotations

from typing import Annotated

from core.records.api.kinds import Timestamp, Yes
from core.records.api.record import Record


class WrongRow(Record):
    """A row that disagrees with the ledger entries."""

    table: Annotated[str, "Table of the row."]
    row: Annotated[str, "Key of the row; of an account its address."]
    column: Annotated[str, "Column that is wrong."]
    got: Annotated[str, "Stored value; amounts in micro-credits."]
    expected: Annotated[str, "Value by the entries; amounts in micro-credits."]


class BooksChecked(Record):
    """The newest result of the check of the books."""

    started_at: Annotated[Timestamp | None, "Start of the check; null before the first has ended."]
    checked_at: Annotated[Timestamp | None, "End of the check; null before the first has ended."]
    up_to_entry: Annotated[int, "Newest ledger entry that the check has read."]
    rows: Annotated[dict[str, int], "Rows that were compared, by table; fewer if one is wrong."]
    problem: Annotated[WrongRow | None, "First row that disagrees; null if none does."]


class BooksRequested(Record):
    """A requested check of the books."""

    success: Yes
    requested_at: Annotated[
        Timestamp, "The result of this request has this `startedAt` or a later one."
    ]
