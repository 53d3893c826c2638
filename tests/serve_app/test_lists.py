"""Pages: cursors that lead on, and queries that are refused."""

from __future__ import annotations

from typing import Any, cast

import pytest

from core.errors import ErrorCode, ServiceError
from serve_app.calls import Call
from serve_app.lists import OFFSET_MAX, choice_of, id_of, listed, number_after, page_of, time_of
from serve_app.services import Services


def call(query: str) -> Call:
    # Only the query is read here; no service is called.
    return Call(
        services=cast(Services, None),
        method="GET",
        path_values={},
        headers={},
        query_string=query.encode(),
        raw_path=b"/",
        request_id="r",
    )


def walk(rows: list[int], limit: int) -> list[list[int]]:
    pages: list[list[int]] = []
    cursor = ""
    while True:
        page = page_of(call(f"limit={limit}{cursor}"), default=5, most=100)
        after = number_after(page)
        rest = [row for row in rows if after is None or row < after]
        reply: dict[str, Any] = listed("rows", rest[: page.limit + 1], page, lambda row: row)
        pages.append(reply["rows"])
        if reply["nextCursor"] is None:
            return pages
        cursor = f"&cursor={reply['nextCursor']}"


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
def test_cursors_lead_through_a_list_without_gaps(limit: int) -> None:
    rows = list(range(7, 0, -1))
    pages = walk(rows, limit)
    assert [row for page in pages for row in page] == rows
    assert all(len(page) == limit for page in pages[:-1])


def test_a_page_has_defaults() -> None:
    page = page_of(call(""), default=5, most=9)
    assert (page.limit, page.offset, page.after) == (5, 0, None)


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=10",
        "limit=-1",
        "limit=1.5",
        "limit=",
        "limit=%D9%A3",
        f"offset={OFFSET_MAX + 1}",
        "cursor=!",
        "cursor=%FF",
        f"cursor={'A' * 201}",
    ],
)
def test_a_bad_page_is_refused(query: str) -> None:
    with pytest.raises(ServiceError) as refusal:
        page_of(call(query), default=5, most=9)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


def test_a_cursor_of_another_list_is_refused() -> None:
    page = page_of(call("cursor=ZGlk"), default=5, most=9)
    assert page.after == "did"
    with pytest.raises(ServiceError):
        number_after(page)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00+00:00"),
        ("2026-01-31T12:00:00", "2026-01-31T12:00:00+00:00"),
        ("2026-01-31T12:00:00%2B02:00", "2026-01-31T10:00:00+00:00"),
    ],
)
def test_times_are_utc(text: str, expected: str) -> None:
    moment = time_of(call(f"startTime={text}"), "startTime")
    assert moment is not None
    assert moment.isoformat() == expected


def test_a_word_is_one_of_its_list_or_absent() -> None:
    assert choice_of(call("status=b"), "status", ["a", "b"]) == "b"
    assert choice_of(call(""), "status", ["a", "b"]) is None
    with pytest.raises(ServiceError) as refused:
        choice_of(call("status=c"), "status", ["a", "b"])
    assert refused.value.problems[0].expected == "a, b"


def test_an_id_has_its_usual_spelling() -> None:
    spelled = "0199c0de-0000-7000-8000-000000000001"
    for given in (spelled, spelled.upper(), spelled.replace("-", "")):
        assert id_of(call(f"workflowId={given}"), "workflowId") == spelled
    assert id_of(call(""), "workflowId") is None
    for given in ("", "x", spelled + "0"):
        with pytest.raises(ServiceError) as refused:
            id_of(call(f"workflowId={given}"), "workflowId")
        assert refused.value.code is ErrorCode.INVALID_REQUEST
