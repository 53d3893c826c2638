"""Filters of event triggers: what they match, and which forms they have."""

from __future__ import annotations

from typing import Any

import pytest

from core.triggers.event_match import checked_filter, first_match

EVENT = {
    "type": "workflow.finished",
    "targetType": "workflow",
    "targetId": "w1",
    "payload": {
        "status": "failed",
        "count": 1,
        "isLate": True,
        "error": {"code": "X"},
        "none": None,
    },
}


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"status": "failed"},
        {"status": ["completed", "failed"]},
        {"count": 1.0},
        {"isLate": True},
        {"none": None},
        {"error.code": "X", "status": "failed"},
        {"targetId": "w1"},
    ],
)
def test_events_with_the_wanted_members_match(wanted: dict[str, Any]) -> None:
    other = {**EVENT, "type": "node.failed"}
    assert first_match([other, EVENT], "workflow.finished", wanted) is EVENT


@pytest.mark.parametrize(
    "wanted",
    [
        {"status": "completed"},
        {"status": "failed", "count": 2},
        {"status": ["completed", None]},
        {"count": True},
        {"count": "1"},
        {"isLate": 1},
        {"missing": None},
        {"error.message": "X"},
        {"error": "X"},
        {"status.code": "X"},
        {"none.x": None},
    ],
)
def test_events_with_other_members_do_not_match(wanted: dict[str, Any]) -> None:
    assert first_match([EVENT], "workflow.finished", wanted) is None


def test_another_type_does_not_match_whatever_its_members_are() -> None:
    assert first_match([EVENT], "node.failed", {}) is None


def test_the_first_event_that_matches_is_taken() -> None:
    second = {**EVENT, "payload": {"status": "completed"}}
    third = {**second, "targetId": "w3"}
    found = first_match([EVENT, second, third], "workflow.finished", {"status": "completed"})
    assert found is second


@pytest.mark.parametrize(
    "wanted",
    [
        {"a" * i: 1 for i in range(1, 12)},
        {"a": "x" * 4_096},
        {"": 1},
        {"a..b": 1},
        {".a": 1},
        {"a": {}},
        {"a": []},
        {"a": [[1]]},
    ],
)
def test_a_filter_of_another_form_is_refused(wanted: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        checked_filter(wanted)
