"""Canonical JSON: the fast encoder agrees with RFC 8785's reference wherever it is used."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from core.canonical import _OTHER, _form_of, canonical, hash_text
from core.jcs import jcs
from core.json_text import read_json

texts = st.text(max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**53) + 1, max_value=2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)
# Texts that look like the numbers whose forms differ.
number_like = st.text('0123456789.e+-"\\,é', max_size=12)
below_private_use = st.text(st.characters(max_codepoint=0xD7FF), max_size=20)
plain_values = st.recursive(
    scalars.filter(lambda value: not isinstance(value, str) or value.isprintable()) | number_like,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(below_private_use | number_like, inner, max_size=5)
    ),
    max_leaves=20,
)


def _power(exponent: Decimal) -> float:
    """Return a number near one of the bounds between which the forms of numbers change."""
    return float(10 ** float(exponent))


@given(values)
def test_is_byte_for_byte_the_reference(value: Any) -> None:
    assert canonical(value) == jcs(value) == rfc8785.dumps(value)


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.decimals(-25, 25).map(_power)


@given(st.lists(numbers | number_like, min_size=1))
def test_numbers_are_written_as_the_reference_writes_them(found: list[float | str]) -> None:
    """Beside texts that look like them, and with either sign."""
    for value in (found, [-item for item in found if isinstance(item, float)]):
        assert canonical(value) == jcs(value) == rfc8785.dumps(value)


@given(plain_values)
def test_fast_encoder_is_used_and_agrees(value: Any) -> None:
    """An agent's reply of 1 MiB of floats took 490 ms by the other."""
    assert _form_of(value) != _OTHER
    assert canonical(value) == rfc8785.dumps(value)


wide_integers = st.integers(-(10**128) + 1, 10**128 - 1)


@given(st.lists(wide_integers | number_like) | st.dictionaries(number_like, wide_integers))
def test_integer_keeps_all_its_digits(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    assert canonical(value) == jcs(value) == text.encode()


@given(numbers)
def test_form_stays_itself_when_it_is_read_again(number: float) -> None:
    """The form of a double from 2^53 to 10^21 is an integer's."""
    text = canonical([number])
    assert canonical(read_json(text)) == text


@pytest.mark.parametrize(
    "value",
    [
        10**128,
        -(10**128),
        {"a": 10**5_000},
        float("nan"),
        [float("inf")],
        {1: 2},
        {"a": object()},
        "\ud800",
        {"\udfff": 1},
        b"bytes",
    ],
)
def test_refuses_what_has_no_canonical_form(value: Any) -> None:
    with pytest.raises(ValueError, match="canonical"):
        canonical(value)


def test_refuses_endless_nesting_instead_of_crashing() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ValueError, match="nested too deeply"):
        canonical(value)


def test_hash_is_prefixed_hex_of_the_canonical_form() -> None:
    digest = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert hash_text({}) == f"sha256:{digest}"
    assert hash_text({"a": 1, "b": 2}) == hash_text({"b": 2, "a": 1.0})
