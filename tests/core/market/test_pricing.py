"""Prices, token counts and reservations. Reference: money.md (Prices, Per-token prices,
Estimate)."""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.market.pricing import (
    FREE,
    PRICE_CENTS_MAX,
    TOKENS_MAX,
    FixedPrice,
    Price,
    TokenPrice,
    Tokens,
    cost_micro,
    effective_price,
    is_budget_required,
    market_limit_micro,
    parse_price,
    price_from_json,
    price_json,
    read_tokens,
    token_reservations,
)

RATES = st.decimals(min_value=0, max_value=Decimal("999.999999999999"), places=12)
COUNTS = st.integers(0, TOKENS_MAX)
TOKEN_PRICES = st.builds(TokenPrice, RATES, RATES)
PRICES = st.builds(FixedPrice, st.integers(0, 10**15)) | TOKEN_PRICES


def parsed(member: dict[str, Any]) -> Price | None:
    """Return the price of a member without problems."""
    price, problems = parse_price(member)
    assert not problems
    return price


def paths(member: dict[str, Any], path: str = "", *, is_required: bool = False) -> list[str]:
    """Return where a member has problems; it then has no price."""
    price, problems = parse_price(member, path, is_required=is_required)
    assert price is None
    return [problem.path for problem in problems]


def per_token(input_rate: object, output_rate: object, model: object = "per-token") -> Any:
    return {"pricing": {"model": model, "inputRate": input_rate, "outputRate": output_rate}}


# -- cost -----------------------------------------------------------------------------------------


@given(TOKEN_PRICES, COUNTS, COUNTS)
def test_cost_is_the_exact_product_rounded_up_once(
    price: TokenPrice, read: int, written: int
) -> None:
    exact = 10**6 * (read * Fraction(price.input_rate) + written * Fraction(price.output_rate))
    assert 0 <= cost_micro(price, Tokens(read, written)) - exact < 1


@given(TOKEN_PRICES, COUNTS, COUNTS)
def test_cost_does_not_depend_on_the_ambient_decimal_precision(
    price: TokenPrice, read: int, written: int
) -> None:
    cost = cost_micro(price, Tokens(read, written))
    with localcontext() as context:
        context.prec = 3
        assert cost_micro(price, Tokens(read, written)) == cost


@given(TOKEN_PRICES, st.integers(1, TOKENS_MAX))
def test_no_work_at_a_rate_is_free_by_rounding(price: TokenPrice, count: int) -> None:
    is_free = not price.input_rate
    assert (cost_micro(price, Tokens(count, 0)) == 0) == is_free


def test_cost_of_a_fixed_price_does_not_depend_on_tokens() -> None:
    assert cost_micro(FixedPrice(7), Tokens(10, 10)) == 7


def test_an_agents_own_price_comes_before_the_capabilitys() -> None:
    assert effective_price(FREE, FixedPrice(5)) == FREE
    assert effective_price(None, FixedPrice(5)) == FixedPrice(5)
    assert effective_price(None, None) == FixedPrice(0)


# -- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metrics", "tokens"),
    [
        ({}, Tokens(0, 0)),
        ({"input_tokens": 3, "output_tokens": 4}, Tokens(3, 4)),
        ({"inputTokens": 3, "outputTokens": 4}, Tokens(3, 4)),
        ({"input_tokens": 3, "inputTokens": 9}, Tokens(3, 0)),
        ({"input_tokens": None, "inputTokens": 9}, Tokens(9, 0)),
        ({"tokens_used": 8}, Tokens(0, 8)),
        ({"tokensUsed": 8}, Tokens(0, 8)),
        ({"input_tokens": 0, "tokens_used": 8}, Tokens(0, 0)),
        ({"input_tokens": 3, "tokens_used": 8}, Tokens(3, 0)),
        ({"output_tokens": "x", "tokens_used": 8}, Tokens(0, 0)),
        ({"tokens_used": 8.0}, Tokens(0, 8)),
        ({"tokens_used": TOKENS_MAX}, Tokens(0, TOKENS_MAX)),
        ({"tokens_used": TOKENS_MAX + 1}, Tokens(0, 0)),
    ],
)
def test_tokens_are_read_in_every_spelling(metrics: dict[str, Any], tokens: Tokens) -> None:
    assert read_tokens(metrics) == tokens


@pytest.mark.parametrize("value", [-1, 1.5, True, "5", [], {}, float("inf"), float("nan"), 1e300])
def test_what_cannot_be_a_count_counts_as_none(value: object) -> None:
    assert read_tokens({"input_tokens": value, "output_tokens": 2}) == Tokens(0, 2)


# -- reservations ---------------------------------------------------------------------------------


@st.composite
def shared(draw: st.DrawFn) -> tuple[int, int, list[str], dict[str, int]]:
    """Draw a hold, fixed reservations, nodes and limits that the hold covers."""
    nodes = [f"n{number}" for number in range(draw(st.integers(0, 6)))]
    limits = {name: draw(st.integers(0, 10**6)) for name in nodes if draw(st.booleans())}
    fixed = draw(st.integers(0, 10**6))
    return fixed + sum(limits.values()) + draw(st.integers(0, 10**6)), fixed, nodes, limits


@given(shared())
def test_reservations_use_the_hold_up_and_shares_differ_by_one_at_most(
    drawn: tuple[int, int, list[str], dict[str, int]],
) -> None:
    hold, fixed, nodes, limits = drawn
    found = token_reservations(hold, fixed, nodes, limits)
    assert list(found) == nodes
    shares = [micro for name, micro in found.items() if name not in limits]
    assert all(found[name] == limit for name, limit in limits.items())
    if shares:
        assert fixed + sum(found.values()) == hold
        assert shares == sorted(shares, reverse=True)
        assert shares[0] - shares[-1] <= 1


def test_shares_of_an_overdrawn_hold_are_zero_and_never_negative() -> None:
    assert token_reservations(5, 9, ["a", "b"], {"b": 4}) == {"a": 0, "b": 4}


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10**15)), st.integers(0, 3 * 10**15)
)
def test_rule_4_a_budget_raises_what_nodes_start_with_and_is_never_exceeded(
    starts: dict[str, int], left_micro: int
) -> None:
    hold = sum(starts.values()) + left_micro
    found = token_reservations(hold, 0, list(starts), {}, starts)
    assert sum(found.values()) == (hold if starts else 0)
    for one, start in starts.items():
        assert found[one] >= start
        for other, more in starts.items():
            if more >= start > 0:
                assert found[other] - more + 1 >= found[one] - start, "in proportion"
    overdrawn = token_reservations(hold // 2, 0, list(starts), {}, starts)
    assert hold // 2 < sum(starts.values()) or sum(overdrawn.values()) <= hold // 2


def test_rule_4_a_free_offer_counts_as_the_average_of_the_others() -> None:
    starts = {"free": 0, "a": 10, "b": 30}
    assert token_reservations(100, 0, list(starts), {}, starts) == {"free": 20, "a": 20, "b": 60}
    assert token_reservations(9, 0, ["x", "y"], {}, {"x": 0, "y": 0}) == {"x": 5, "y": 4}


@pytest.mark.parametrize(
    ("positive", "dearest", "limit"), [(10, 10**15, 30), (10, 20, 20), (None, 0, 0), (9, 9, 9)]
)
def test_rule_4_without_a_budget_a_node_pays_three_times_the_lowest_price(
    positive: int | None, dearest: int, limit: int
) -> None:
    assert market_limit_micro(positive, dearest) == limit
    assert market_limit_micro(positive, dearest, has_free=True) == limit
    assert market_limit_micro(10**15, 10**15, has_free=True) == 10_000_000


@pytest.mark.parametrize(
    ("price", "is_auction", "max_cost", "budget", "required"),
    [
        (TokenPrice(Decimal(1), Decimal(1)), False, None, None, True),
        (TokenPrice(Decimal(1), Decimal(1)), False, 5, None, False),
        (TokenPrice(Decimal(1), Decimal(1)), False, None, 0, False),
        (TokenPrice(Decimal(1), Decimal(1)), True, None, None, True),
        (None, True, None, None, True),
        (None, True, 5, None, False),
        (None, True, None, 5, False),
        (None, False, None, None, False),
        (FixedPrice(1), False, None, None, False),
        (FixedPrice(1), True, None, None, False),
    ],
)
def test_case_02_a_budget_is_required_where_nothing_else_bounds_the_cost(
    price: Price | None, is_auction: bool, max_cost: int | None, budget: int | None, required: bool
) -> None:
    assert required is is_budget_required(
        price, is_auction=is_auction, max_cost_micro=max_cost, budget_micro=budget
    )


# -- JSON -----------------------------------------------------------------------------------------


@given(PRICES)
def test_a_stored_price_is_read_back_as_it_was(price: Price) -> None:
    assert price_from_json(price_json(price)) == price


@given(RATES, RATES)
def test_a_rate_is_read_exactly_as_number_and_as_text(first: Decimal, second: Decimal) -> None:
    as_texts = per_token(str(first), format(second, "f"))
    assert parsed(as_texts) == TokenPrice(first, second)
    assert parsed(per_token(float(first), float(second))) == TokenPrice(first, second)


def test_prices_are_read_from_cards_and_bodies() -> None:
    assert parsed({}) is None
    assert parsed({"price_cents": None, "pricing": None}) is None
    assert parsed({"id": "cap.a.v1", "price_cents": 5}) == FixedPrice(50_000)
    assert parsed({"price_cents": 5.0}) == FixedPrice(50_000)
    assert parsed({"price_cents": 0}) == FREE
    assert parsed(per_token(0, 1e-06)) == TokenPrice(Decimal(0), Decimal("0.000001"))


@pytest.mark.parametrize("cents", [-1, 1.5, 1e300, True, "5", PRICE_CENTS_MAX + 1, {}, []])
def test_a_price_that_is_not_whole_cents_is_a_problem(cents: object) -> None:
    assert paths({"price_cents": cents}, "capabilities[2]") == ["capabilities[2].price_cents"]


@pytest.mark.parametrize(
    "rate",
    [None, -1, -0.0, "-0", 1000, "1e3", True, "", " 1", "1_0", "x", "NaN", "Infinity", {}, [],
     float("nan"), float("inf"), "0.0000000000001", 1e-13, "1" * 41, "٣"],
)  # fmt: skip
def test_a_rate_out_of_range_is_a_problem(rate: object) -> None:
    assert paths(per_token(rate, 1)) == ["pricing.inputRate"]


def test_zeros_at_the_end_are_no_decimals() -> None:
    assert parsed(per_token("0.1000000000000000", "0E-20")) == parsed(per_token("0.1", 0))


def test_all_problems_of_a_pricing_are_found() -> None:
    assert paths({"pricing": {}}) == ["pricing.model", "pricing.inputRate", "pricing.outputRate"]
    assert paths({"pricing": 5}, "x") == ["x.pricing"]
    assert paths(per_token(1, 1, model="per-word")) == ["pricing.model"]
    assert paths({"price_cents": 1, **per_token(1, 1)}) == ["pricing"]
    assert paths({}, is_required=True) == ["price_cents"]
