"""Pages: cursors that lead on, and queries that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import ErrorCode, ServiceError
from core.json_text import read_json, write_json
from core.records.api.kinds import OFFSET_MAX
from core.records.api.record import PageQuery
from core.records.api.shape import parsed
from core.settings import Settings
from serve_app.http.calls import query_values
from serve_app.http.lists import Page, listed, number_after, page_of
from tests.serve_app.parts import call_of, gateway_with


def asked(query: str, *, default: int = 5, most: int = 9) -> Page:
    """Return the page that a query asks for, as the endpoint parses it."""
    asked_for = parsed(PageQuery, query_values(query.encode(), []))
    call = call_of(gateway_with(Settings()), query_string=query.encode())
    return page_of(call, asked_for, default=default, most=most)


def walk(rows: list[int], limit: int) -> list[list[int]]:
    pages: list[list[int]] = []
    cursor = ""
    while True:
        page = asked(f"limit={limit}{cursor}", most=100)
        after = number_after(page)
        rest = [row for row in rows if after is None or row < after]
        reply: dict[str, Any] = listed("rows", rest[: page.limit + 1], page, lambda row: row)
        pages.append([read_json(write_json(row)) for row in reply["rows"]])
        if reply["nextCursor"] is None:
            return pages
        cursor = f"&cursor={reply['nextCursor']}"


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_cursors_lead_through_a_list_without_gaps(limit: int) -> None:
    rows = list(range(7, 0, -1))
    pages = walk(rows, limit)
    assert [row for page in pages for row in page] == rows
    assert all(len(page) == limit for page in pages[:-1])


def pages_of(sizes: list[int], bytes_max: int) -> list[list[int]]:
    """Walk through a list of texts of these sizes; return the positions shown on each page."""
    rows = [{"at": at, "text": "x" * size} for at, size in enumerate(sizes)]
    pages: list[list[int]] = []
    page = Page(limit=4, offset=0, after=None, bytes_max=bytes_max)
    start = 0
    while True:
        reply = read_json(
            write_json(listed("rows", rows[start : start + 5], page, lambda row: row["at"]))
        )
        assert reply["rows"], "a page is never empty"
        shown = [row["at"] for row in reply["rows"]]
        assert len(shown) == 1 or sum(sizes[at] for at in shown) <= bytes_max
        pages.append(shown)
        if reply["nextCursor"] is None:
            return pages
        start = shown[-1] + 1


def test_a_page_ends_before_its_bytes_pass_the_bound_and_the_next_goes_on() -> None:
    assert pages_of([400, 400, 400, 10, 10, 10], 1_000) == [[0, 1], [2, 3, 4, 5]]
    assert pages_of([2_000, 2_000, 10], 1_000) == [[0], [1], [2]], "one row is always shown"
    assert pages_of([10] * 9, 1_000) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


def test_a_read_that_ended_early_has_more() -> None:
    page = Page(limit=4, offset=0, after=None, bytes_max=1_000)
    rows = [1, 2]
    assert listed("rows", rows, page, lambda row: row)["nextCursor"] is None
    assert listed("rows", rows, page, lambda row: row, is_cut=True)["nextCursor"] is not None
    # A search that has looked at enough goes on from there, though it has nothing to show.
    assert listed("rows", [], page, lambda row: row, looked_to=7)["nextCursor"] is not None


def test_a_page_has_defaults() -> None:
    page = asked("")
    assert (page.limit, page.offset, page.after) == (5, 0, None)


@pytest.mark.parametrize(
    "query",
    [
        "limit=1.5",
        "limit=",
        "limit=%D9%A3",
        f"offset={OFFSET_MAX + 1}",
        "cursor=%FF",
        f"cursor={'A' * 201}",
    ],
)
def test_a_bad_page_is_refused(query: str) -> None:
    with pytest.raises(ServiceError) as refusal:
        asked(query)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


def test_a_cursor_of_another_list_is_refused() -> None:
    page = asked("cursor=ZGlk")
    assert page.after == "did"
    with pytest.raises(ServiceError):
        number_after(page)
