"""JSON texts: what is read agrees with Python's parser, what is refused says where it is wrong."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.json_text import (
    NotJson,
    UnreadNumber,
    duplicate_member,
    may_have_duplicates,
    read_foreign_json,
    read_json,
    write_json,
)

names = st.text('ab:\\u03A"é{', max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | names
    | st.integers(-(10**128) + 1, 10**128 - 1),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
)  # fmt: skip


@given(values, st.booleans())
def test_a_value_comes_back_with_every_digit(value: Any, is_ascii: bool) -> None:
    assert read_json(write_json(value)) == value
    text = json.dumps(value, ensure_ascii=is_ascii, indent=1).encode()
    read = read_foreign_json(text)
    assert read == value
    assert repr(read) == repr(value)
    assert duplicate_member(text) is None
    assert may_have_duplicates(text, read) == (b"\\u003a" in text)


@given(
    st.integers(1, 90),
    st.sampled_from(["", "-"]),
    st.integers(120, 140),
    st.text("x:", max_size=50),
)
def test_129_digits_are_refused_wherever_they_stand(
    shift: int, sign: str, count: int, after: str
) -> None:
    text = b'{"%s":[%s],"%s":"%s"}' % (
        b"k" * shift, (sign + "7" * count).encode(), after.encode(), b"8" * 300
    )  # fmt: skip
    if count <= 128:
        assert read_foreign_json(text) == json.loads(text)
        return
    with pytest.raises(UnreadNumber) as refused:
        read_foreign_json(text)
    assert refused.value.problem.path == f"{'k' * shift}[0]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1,]", "byte 3"),
        ('["\\ud800abcdef"]', "surrogate"),
        ('{"a":"\t"}', "byte 6"),
        (b'{"a":"xy\xff"}', "UTF-8 (byte 8)"),
        ("[NaN]", "byte 1"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":', "byte 5"),
        ("[1e400, 5", "not finite"),
        ("[" + "1" * 5_000, "byte 130"),
    ],
)
def test_what_is_no_json_says_why_and_where(text: str | bytes, said: str) -> None:
    with pytest.raises(NotJson, match=re.escape(said)):
        read_foreign_json(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize("number", ["1e400", "-1E400", "1" * 400 + ".5", "1.8e308"])
def test_a_number_beyond_a_double_says_where_it_stands(number: str) -> None:
    with pytest.raises(UnreadNumber) as refused:
        read_foreign_json(b'{"a":[1,%s]}' % number.encode())
    problem = refused.value.problem
    assert (problem.path, problem.expected) == ("a[1]", "a finite number")


@pytest.mark.parametrize("text", ["1" * 200 + ".5", "1" * 200 + "e2", '"' + "1" * 5_000 + '"'])
def test_a_long_double_or_a_text_of_digits_is_no_long_integer(text: str) -> None:
    assert read_foreign_json(b"[%s]" % text.encode()) == [json.loads(text)]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"a":1,"a":1}', "a"),
        ('{"":1,"":1}', "$"),
        ('{"x":{"a":{},"b":[0,{"c":1,"\\u0063":2}]}}', "x.b[1].c"),
        ('{"a":{"b":1,"b":1},"a":1}', "a"),
        ('{"a\\u003a":1,"b":1,"b":2}', "b"),
        ('{"a":":","a":":"}', "a"),
    ],
)
def test_a_doubled_member_is_found(text: str, path: str) -> None:
    assert may_have_duplicates(text.encode(), json.loads(text))
    assert duplicate_member(text.encode()) == path
