"""Pages of lists: `limit`, `offset` and `cursor` in, `{<plural>, limit, offset, nextCursor}` out.

A cursor is the key of the last row shown, encoded so that nobody builds on what is inside.
contract.md section 2 (Lists).
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from core.records.bounds import DID_CHARS_MAX, text_defect
from serve_app.calls import Call, invalid

OFFSET_MAX = 10_000
# A cursor is the base64 of a key, of which DIDs are the longest.
_CURSOR_MAX = -(-DID_CHARS_MAX * 4 // 3) + 4


@dataclass(frozen=True, slots=True)
class Page:
    """What part of a list is asked for. `after`: the key of the last row of the page before.

    `bytes_max`: the page ends before the row that passes it; one row is always shown.
    """

    limit: int
    offset: int
    after: str | None
    bytes_max: int


def page_of(call: Call, *, default: int | None = None, most: int | None = None) -> Page:
    """Read the page that a call asks for.

    Args:
        call: a GET of a list.
        default: rows when `limit` is not given; None for the setting of most lists.
        most: the largest `limit`; None for the setting of most lists.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    if default is None:
        default = call.services.settings.page_default
    if most is None:
        most = call.services.settings.page_max
    return Page(
        limit=_whole(call, "limit", default, 1, most),
        offset=_whole(call, "offset", 0, 0, OFFSET_MAX),
        after=_decoded(call.query.get("cursor")),
        bytes_max=call.services.settings.reply_bytes_max,
    )


def listed(
    plural: str,
    rows: Sequence[Any],
    page: Page,
    key_of_last: Callable[[Any], object],
    *,
    form: Callable[[Any], object] = lambda row: row,
    is_cut: bool = False,
) -> dict[str, Any]:
    """Return the reply of a list whose rows were read with one more than the page's limit.

    Args:
        plural: the member that holds the rows.
        rows: at most `page.limit + 1` rows.
        page: what was asked for.
        key_of_last: the key of a row, from which the next page continues.
        form: makes the JSON form of a row.
        is_cut: the read ended early, because more rows would have been too large.
    """
    shown: list[orjson.Fragment] = []
    size = 0
    for row in rows[: page.limit]:
        text = orjson.dumps(form(row))
        size += len(text)
        if shown and size > page.bytes_max:
            break
        shown.append(orjson.Fragment(text))
    has_more = is_cut or len(rows) > len(shown)
    return {
        plural: shown,
        "limit": page.limit,
        "offset": page.offset,
        "nextCursor": _encoded(str(key_of_last(rows[len(shown) - 1]))) if has_more else None,
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


def choice_of(call: Call, name: str, choices: Iterable[str]) -> str | None:
    """Read a query parameter that is one of a few words.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    text = call.query.get(name)
    known = [str(choice) for choice in choices]
    if text is not None and text not in known:
        raise invalid(name, text, ", ".join(known))
    return text


def flag_of(call: Call, name: str) -> bool | None:
    """Read a query parameter that is `true` or `false`; None without one.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    text = choice_of(call, name, ("true", "false"))
    return None if text is None else text == "true"


def id_of(call: Call, name: str) -> str | None:
    """Read a query parameter that is an id, in its usual spelling.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    text = call.query.get(name)
    try:
        return None if text is None else str(uuid.UUID(text))
    except ValueError:
        raise invalid(name, text or "", "an id, 32 hexadecimal digits") from None


def time_of(call: Call, name: str) -> datetime | None:
    """Read a query parameter that is a time.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    text = call.query.get(name)
    return None if text is None else parse_time(name, text)


def parse_time(path: str, text: object) -> datetime:
    """Parse an ISO 8601 time; one without a zone is UTC.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    try:
        parsed = datetime.fromisoformat(text) if isinstance(text, str) else None
        if parsed is not None:
            return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, OverflowError):  # in UTC it would lie before the year 1 or after 9999
        pass
    raise invalid(path, str(text)[:100], "a time such as 2026-01-31T12:00:00Z")


def _whole(call: Call, name: str, default: int, low: int, high: int) -> int:
    text = call.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and low <= int(text) <= high):
        raise invalid(name, text, f"a whole number from {low} to {high}")
    return int(text)


def _encoded(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def _decoded(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        if len(cursor) > _CURSOR_MAX:
            raise ValueError(cursor)
        padded = cursor + "=" * (-len(cursor) % 4)
        key = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
        if text_defect(key) is not None:
            raise ValueError(cursor)
    except (ValueError, binascii.Error):
        raise invalid("cursor", cursor, "the nextCursor of the page before") from None
    return key
