"""Reads the page that a query requests, and builds the reply with the rows of the page.

The query has `limit`, `offset` and `cursor`. The reply is `{<plural>, limit, offset, nextCursor}`.
A cursor is the key of a page's last row, encoded so that no client relies on its contents.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from core.json_text import Raw, write_json
from core.records.api.kinds import Uuid
from core.records.api.record import PageQuery
from core.records.api.shape import value_of
from serve_app.http.calls import Call, invalid

# The rows of a page if the query has no `limit`, and the largest permitted `limit`.
PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 100
# The largest size of a page's rows. A page whose first row is larger has only this row.
REPLY_BYTES_MAX: Final = 4 * 1024 * 1024


class Rows(TypedDict):
    """The limit and the offset of a database query for a list."""

    limit: int
    offset: int


@dataclass(frozen=True, slots=True)
class Page:
    """The requested part of a list.

    `after`: the key of the last row of the previous page. `bytes_max`: the largest size of the
    page's rows. A page whose first row is larger has only this row.
    """

    limit: int
    offset: int
    after: str | None
    bytes_max: int

    @property
    def rows(self) -> Rows:
        """The limit and the offset of the read, with one row more than the page's `limit`.

        The additional row shows that a next page exists.
        """
        return {"limit": self.limit + 1, "offset": self.offset}


def page_of(
    call: Call, asked: PageQuery, *, default: int = PAGE_DEFAULT, most: int = PAGE_MAX
) -> Page:
    """Return the page that a call requests.

    Args:
        call: a GET of a list.
        asked: the parsed query of the call.
        default: rows of a page when the query has no `limit`.
        most: the largest permitted `limit`.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    limit = default if asked.limit is None else asked.limit
    if limit > most:
        raise invalid("limit", str(limit), f"a whole number from 1 to {most}")
    return Page(
        limit=limit,
        offset=asked.offset or 0,
        after=asked.cursor,
        bytes_max=REPLY_BYTES_MAX,
    )


def listed(
    plural: str,
    rows: Sequence[Any],
    page: Page,
    key_of_last: Callable[[Any], object],
    *,
    form: Callable[[Any], object] = lambda row: row,
    is_cut: bool = False,
    looked_to: int | None = None,
) -> dict[str, Any]:
    """Return the body of a list's reply.

    Args:
        plural: the member that holds the rows.
        rows: the rows that were read for `Page.rows`: at most `page.limit + 1`.
        page: the requested page.
        key_of_last: returns the key of a row; the next page continues after the last row's key.
        form: returns the JSON form of a row.
        is_cut: the read stopped early, because the rows would have become too large.
        looked_to: the key of the last row that a bounded search has read; `rows` has all matches
            up to this row. None: the search did not stop early.
    """
    shown: list[Raw] = []
    size = 0
    for row in rows[: page.limit]:
        text = write_json(form(row))
        size += len(text)
        if shown and size > page.bytes_max:
            break
        shown.append(Raw(text))
    last: object = looked_to
    if is_cut or len(rows) > len(shown):
        last = key_of_last(rows[len(shown) - 1])
    return {
        plural: shown,
        "limit": page.limit,
        "offset": page.offset,
        "nextCursor": None if last is None else _encoded(str(last)),
    }


def number_after(page: Page) -> int | None:
    """Return the decoded cursor of a list whose keys are whole numbers; None without a cursor.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    if page.after is None:
        return None
    if not page.after.isdecimal() or len(page.after) > 18:
        raise invalid("cursor", page.after, "the nextCursor of a page of this list")
    return int(page.after)


def id_after(page: Page) -> str | None:
    """Return the decoded cursor of a list whose keys are UUIDs; None without a cursor.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    return None if page.after is None else str(value_of(Uuid, "cursor", page.after))


def _encoded(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
