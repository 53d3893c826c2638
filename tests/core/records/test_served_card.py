"""Where a served card differs from the registered one: named by the registered card alone."""

from __future__ import annotations

from typing import Any

import pytest

from core.records.agent import DIFFERENCES_MAX, find_differences

CARD: dict[str, Any] = {
    "did": "did:net:a",
    "version": 1,
    "capabilities": [{"id": "a.v1", "description": "x"}, {"id": "b.v1"}],
}
A, B = CARD["capabilities"]


@pytest.mark.parametrize(
    ("served", "found"),
    [
        (CARD, []),
        ({**CARD, "<script>": 1}, []),
        ({**CARD, "capabilities": [B, A]}, []),
        ({**CARD, "version": 2}, ["version"]),
        ({"did": "did:net:a", "version": 1}, ["capabilities.a.v1", "capabilities.b.v1"]),
        ({**CARD, "capabilities": [A, B, {"id": "c.v1"}]}, ["capabilities"]),
        ({**CARD, "capabilities": [{**A, "description": "y"}, {**B, "z": 1}]},
         ["capabilities.a.v1.description"]),
        ({**CARD, "capabilities": [A, B, 5, {"id": 5}]}, []),
        ({**CARD, "capabilities": 5}, ["capabilities.a.v1", "capabilities.b.v1"]),
        ([], [""]),
        (None, [""]),
    ],
)  # fmt: skip
def test_differences_are_named_by_the_registered_card(served: Any, found: list[str]) -> None:
    assert find_differences(CARD, served) == found


def test_so_many_differences_are_named_and_no_more() -> None:
    many = {**CARD, "capabilities": [{"id": f"cap.{one}"} for one in range(100)]}
    assert len(find_differences(many, {})) == DIFFERENCES_MAX
