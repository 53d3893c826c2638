"""The demonstration's books. Reference: money.md (Settlement)."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from callboard.demo.books import books_of


def entry(kind: str, amount: float, node: str | None = None) -> dict[str, Any]:
    return {"id": 1, "kind": kind, "amount": amount, **({"nodeId": node} if node else {})}


ENTRIES = [
    entry("escrow_hold", 0.5),
    entry("node_payment", 0.0475, "a"),
    entry("protocol_fee", 0.0025, "a"),
    entry("node_payment", 0.095, "b"),
    entry("protocol_fee", 0.005, "b"),
    entry("escrow_release", 0.35),
]


def test_every_credit_held_is_accounted_for() -> None:
    books = books_of(ENTRIES)
    assert books.is_balanced
    assert (books.paid_in_all, books.fees_in_all) == (Decimal("0.1425"), Decimal("0.0075"))
    assert books.paid == {"a": Decimal("0.0475"), "b": Decimal("0.095")}


@pytest.mark.parametrize("lost", range(len(ENTRIES)))
def test_a_lost_entry_unbalances_the_books(lost: int) -> None:
    assert not books_of(ENTRIES[:lost] + ENTRIES[lost + 1 :]).is_balanced


def test_an_unknown_kind_of_entry_is_not_passed_over() -> None:
    with pytest.raises(KeyError):
        books_of([entry("gift", 1)])
