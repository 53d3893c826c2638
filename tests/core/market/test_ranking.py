"""Which agent takes a node, of several that could."""

from __future__ import annotations

from core.market.ranking import Candidate, choose


def candidate(did: str, **fields: float) -> Candidate:
    """Return an idle candidate of concurrency 10."""
    values = {"price_micro": 1, "in_flight": 0, "max_concurrency": 10, "order": 0, **fields}
    return Candidate(did, **values)  # type: ignore[arg-type]


def chosen(*candidates: Candidate, price_max_micro: int = 10) -> str | None:
    found = choose(candidates, price_max_micro=price_max_micro)
    return None if found is None else found.did


def test_the_one_with_the_smaller_share_taken_is_chosen() -> None:
    assert chosen(candidate("a", in_flight=2), candidate("b", in_flight=3)) == "a"
    large = candidate("large", in_flight=5, max_concurrency=100)
    assert chosen(candidate("small", in_flight=1), large) == "large"


def test_a_reported_load_counts_where_it_is_more_than_what_is_known() -> None:
    assert chosen(candidate("a", load=0.9), candidate("b", in_flight=5)) == "b"
    assert chosen(candidate("a", load=0.2, in_flight=5), candidate("b", in_flight=4)) == "b"
    assert chosen(candidate("a", load=0.5, in_flight=3), candidate("b", load=0.5)) == "b"


def test_equals_are_taken_in_order_and_the_dear_are_left_out() -> None:
    assert chosen(candidate("a", order=2), candidate("b", order=1)) == "b"
    assert chosen(candidate("a", price_micro=11), candidate("b", order=9)) == "b"
    assert chosen(candidate("a", price_micro=11)) is None
