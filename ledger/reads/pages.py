"""Tables read page by page: whole, in the order of their key, or only what has changed.

What a process reads of a table to know all of it must not come in one statement: neither side's
memory nor the statement's timeout grows with the table.
Decision fairness-and-long-work.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import sqlalchemy as sql

from ledger.reads.reader import LedgerReader
from ledger.reads.stored import RowDict

PAGE_ROWS: Final = 500


async def pages(
    reader: LedgerReader,
    query: sql.Select[Any],
    *key: sql.ColumnElement[Any],
    page_rows: int = PAGE_ROWS,
) -> AsyncIterator[list[RowDict]]:
    """Yield the rows of a query, page by page, in the order of a key.

    Args:
        query: selects the key's columns, under their own names, among others.
        key: columns that together are unique and not null.
        page_rows: most rows of a page.

    Raises:
        ServiceError: LEDGER_UNAVAILABLE.
    """
    place = sql.tuple_(*key)
    last: tuple[Any, ...] | None = None
    while True:
        page = query.order_by(*key).limit(page_rows)
        if last is not None:
            page = page.where(place > last)
        rows = await reader.rows(page)
        if rows:
            yield rows
        if len(rows) < page_rows:
            return
        last = tuple(rows[-1][str(column.key)] for column in key)


def changed_pages(
    reader: LedgerReader,
    query: sql.Select[Any],
    key: sql.ColumnElement[Any],
    changed_ms: sql.ColumnElement[Any],
    since_ms: int | None,
) -> AsyncIterator[list[RowDict]]:
    """Yield the rows that changed at a time or later, page by page.

    Args:
        query: selects, among others, `key` and `changed_ms` under their own names.
        since_ms: None: every row, in the order of the key.
    """
    if since_ms is None:
        return pages(reader, query, key)
    return pages(reader, query.where(changed_ms >= since_ms), changed_ms, key)
