"""Pages of lists: `limit`, `offset` and `cursor` in, `{<plural>, limit, offset, nextCursor}` out.

A cursor is the key of the last row shown, encoded so that no client builds on what is inside.
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

# Rows of a list without `limit`, and the most rows of a list.
PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 100
# A list ends its page before this size.
REPLY_BYTES_MAX: Final = 4 * 1024 * 1024


class Rows(TypedDict):
    """The rows of a list that a read returns."""

    limit: int
    offset: int


@dataclass(frozen=True, slots=True)
class Page:
    """What part of a list is asked for. `after`: the key of the last row of the page before.

    `bytes_max`: the page ends before the row that passes it; one row is always shown.
    """

    limit: int
    offset: int
    after: str | None
    bytes_max: int

    @property
    def rows(self) -> Rows:
        """Which rows are read: one more than are shown, which says whether a page follows."""
        return {"limit": self.limit + 1, "offset": self.offset}


def page_of(
    call: Call, asked: PageQuery, *, default: int = PAGE_DEFAULT, most: int = PAGE_MAX
) -> Page:
    """Return the page that a call asks for.

    Args:
        call: a GET of a list.
        asked: its query.
        default: rows when `limit` is not given.
        most: the largest `limit`.

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
    """Return the reply of a list whose rows were read with one more than the page's limit.

    Args:
        plural: the member that holds the rows.
        rows: at most `page.limit + 1` rows.
        page: what was asked for.
        key_of_last: the key of a row, from which the next page continues.
        form: makes the JSON form of a row.
        is_cut: the read ended early, because more rows would have been too large.
        looked_to: the read ended early, at the row of this key, having shown all before it.
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
    """Return the cursor of a list that is keyed by whole numbers.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    if page.after is None:
        return None
    if not page.after.isdecimal() or len(page.after) > 18:
        raise invalid("cursor", page.after, "the nextCursor of a page of this list")
    return int(page.after)


def id_after(page: Page) -> str | None:
    """Return the cursor of a list that is keyed by ids.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    return None if page.after is None else str(value_of(Uuid, "cursor", page.after))


def _encoded(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
