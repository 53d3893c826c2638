"""Money: what is parsed is what was written, and nothing is lost on the way back to JSON."""

from __future__ import annotations

import json
from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.money import (
    MICRO_MAX,
    cents_ceil,
    cents_half_up,
    credits_number,
    credits_text,
    micro_from_cents,
    micro_from_credits,
)

amounts = st.integers(min_value=-MICRO_MAX, max_value=MICRO_MAX)


@pytest.mark.parametrize(
    ("given_value", "micro"),
    [
        (0, 0),
        (1, 1_000_000),
        ("1", 1_000_000),
        (0.1, 100_000),
        ("0.1", 100_000),
        (1e-06, 1),  # repr has an exponent
        ("0.000001", 1),
        (2.5, 2_500_000),
        (10.0, 10_000_000),
        (Decimal("3.25"), 3_250_000),
        (-1.5, -1_500_000),
        (1_000_000_000, MICRO_MAX),
        ("999999999.999999", MICRO_MAX - 1),
        (999999999.999999, MICRO_MAX - 1),
    ],
)
def test_parses_credits_exactly(given_value: object, micro: int) -> None:
    assert micro_from_credits(given_value) == micro


@pytest.mark.parametrize(
    "given_value",
    [
        "",
        "0x10",
        " 1",
        "1.",
        ".5",
        "1_000",
        "+1",
        "٣",  # a digit, not an ASCII one
        "1\n",
        float("nan"),
        float("inf"),
        Decimal("NaN"),
        1_000_000_001,
        10**400,
        "1000000000.000001",
    ],
)
def test_refuses_what_is_not_an_amount_of_credits(given_value: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        micro_from_credits(given_value)


@given(amounts)
def test_number_survives_every_json_client(micro: int) -> None:
    """Goal: the bound of 15 digits holds; method: through two encoders and a double and back."""
    number = credits_number(micro)
    assert micro_from_credits(json.loads(json.dumps(number))) == micro
    assert micro_from_credits(orjson.loads(orjson.dumps(number))) == micro
    assert Decimal(repr(number)) * 1_000_000 == micro


@given(st.integers(min_value=MICRO_MAX + 1, max_value=9 * 10**18), st.sampled_from([1, -1]))
def test_a_balance_that_a_double_would_round_is_text(micro: int, sign: int) -> None:
    text = credits_number(sign * micro)
    assert isinstance(text, str)
    assert Decimal(json.loads(json.dumps(text))) * 1_000_000 == sign * micro


@given(amounts)
def test_text_is_the_same_amount(micro: int) -> None:
    text = credits_text(micro)
    assert micro_from_credits(text) == micro
    assert Decimal(text) * 1_000_000 == micro


@given(st.integers(min_value=0, max_value=MICRO_MAX))
def test_cents_round_as_told(micro: int) -> None:
    exact = Decimal(micro) / 10_000
    assert cents_half_up(micro) == int(exact.quantize(Decimal(1), rounding="ROUND_HALF_UP"))
    assert cents_ceil(micro) == int(exact.quantize(Decimal(1), rounding="ROUND_CEILING"))


def test_cents_become_micro_credits_within_the_bound() -> None:
    assert micro_from_cents(250) == 2_500_000
    assert micro_from_cents(10**11) == MICRO_MAX
    with pytest.raises(ValueError, match="expected at most"):
        micro_from_cents(10**11 + 1)
