"""Input mapping expressions. Reference: features.md (Inputs)."""

from __future__ import annotations

import contextlib
import json
import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

from core.records.graph import (
    EXPRESSION_CHARS_MAX,
    MappingSyntaxError,
    Step,
    parse_mapping,
)

ACCEPTED = {
    "$.extract.result.text": ("extract", ("text",)),
    "$.a.result": ("a", ()),
    "$.a.result.b[0]['x']": ("a", ("b", 0, "x")),
    '$.a.result["b"][12].c': ("a", ("b", 12, "c")),
    "$['node one'].result.a": ("node one", ("a",)),
    "$['a']['result']['b.c']": ("a", ("b.c",)),
    "$.fetch-page.result.x-y": ("fetch-page", ("x-y",)),
    "$.1st.result.2nd": ("1st", ("2nd",)),
    "$.über.result.größe": ("über", ("größe",)),
    "$.a.result.where.parent.len": ("a", ("where", "parent", "len")),
    "$.a.result[ 0 ]": ("a", (0,)),
    "$.a.result['it\\'s']": ("a", ("it's",)),
    '$.a.result["it\\"s"]': ("a", ('it"s',)),
    "$.a.result['\\n']": ("a", ("\n",)),
    "$.a.result['x\\u0041']": ("a", ("xA",)),
    "$.a.result['\\uD83D\\ude00\\/']": ("a", ("\U0001f600/",)),
    "$.a.result['\U0001f600']": ("a", ("\U0001f600",)),
    "$.a.result['']": ("a", ("",)),
    "$.a.result.हिन्दी": ("a", ("हिन्दी",)),
    "$.a.result.cafe\u0301.x": ("a", ("cafe\u0301", "x")),
    "$['*'].result['*']": ("*", ("*",)),
    "$['a.b'].result.c": ("a.b", ("c",)),
    "$ .a\t['result'][ 'x' ]\n.y": ("a", ("x", "y")),
}
REFUSED = [
    "",
    "$",
    "$.a",
    "$.a.output.x",
    "$.a.metrics.latency_ms",
    "a.result.x",
    "result.x",
    "$..x",
    "$.a.result..x",
    "$.a.result[*]",
    "$.a.result[0:2]",
    "$.a.result['x','y']",
    "$.a.result[?(@.x > 1)]",
    "$.a.result.`parent`",
    "$.a.(result.b)",
    "$.a.result.b where c",
    "$.a.result | $.b.result",
    "$.a.result.",
    "$[0].result",
    "$.a[0]",
    "$.a.result" + ".x" * 600,
    "(" * 500,
    "{{a}}",
    "$.a.result['\\ude00\\ud83d']",
    "$.a.result['\\u12']",
    "$.a.result['\\\"']",
    '$.a.result["\\\'"]',
    "$.a.result['\n']",
    "$.a.result['x",
    "$.a.result['x'",
    "$.a.result[x]",
    "$.a.result[-0]",
    "$.a.result[+1]",
    "$.a.result[1.0]",
    "$.a.result[" + "9" * 400 + "]",
    "$.a.result. x",
    "$.a.result ",
    " $.a.result",
    "$.a.result\x00",
]


@pytest.mark.parametrize(("expression", "wanted"), ACCEPTED.items())
def test_accepted(expression: str, wanted: tuple[str, tuple[Step, ...]]) -> None:
    assert parse_mapping(expression) == wanted


@pytest.mark.parametrize("expression", REFUSED)
def test_refused(expression: str) -> None:
    with pytest.raises(MappingSyntaxError):
        parse_mapping(expression)


FIELDS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,6}", fullmatch=True)
QUOTED = st.text(
    st.characters(exclude_characters="'\"\\*", exclude_categories=["Cs", "Cc"]), min_size=1
)
STEPS = st.lists(st.one_of(FIELDS, QUOTED, st.integers(0, 10**6)), max_size=6)


def spelt(step: Step, is_dotted: bool) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    plain = step.replace("_", "").replace("-", "").isalnum()
    return f".{step}" if is_dotted and plain else f"['{step}']"


@given(node=FIELDS, steps=STEPS, is_dotted=st.booleans())
def test_plain_spellings_mean_what_they_say(node: str, steps: list[Step], is_dotted: bool) -> None:
    expression = "$" + "".join(spelt(step, is_dotted) for step in (node, "result", *steps))
    assert parse_mapping(expression) == (node, tuple(steps))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=4), st.booleans())
def test_every_name_can_be_written_in_quotes(names: list[str], is_single: bool) -> None:
    """JSON's escapes are those of RFC 9535, but for the quote."""
    quoted = [json.dumps(name) for name in names]
    if is_single:
        inner = [text[1:-1].replace('\\"', '"').replace("'", "\\'") for text in quoted]
        quoted = [f"'{text}'" for text in inner]
    expression = "$.a.result" + "".join(f"[{text}]" for text in quoted)
    if len(expression) <= EXPRESSION_CHARS_MAX:
        assert parse_mapping(expression) == ("a", tuple(names))


@given(st.text(st.sampled_from("$.ab[]'\"0*?@()|`:, \\-éu1n"), max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(MappingSyntaxError):
        parse_mapping(f"$.a.result{text}")


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("$.a.result[18446744073709551616]", "an index"),
        ("$.a.result[9007199254740992]", "an index beyond 2^53"),
        ("$.a.result[-1]", "a negative index"),
        ("$.a.result[01]", "an index"),
        ("$.a.result[1e3]", "an index"),
        ("$.a.result[0,1]", "several"),
        ("$.a.result.*", "a wildcard"),
        ("$.a.result[ * ]", "a wildcard"),
        ("$.a.result..x", "a search at any depth"),
        ("$.a.result[?@.x]", "a filter"),
        ("$.a.result['\\x41']", "the unknown escape \\x"),
        ("$.a.result['\\ud800']", "half of a surrogate pair"),
        ("$.a.result x", "not a step"),
    ],
)
def test_what_is_refused_is_named_with_its_place(expression: str, said: str) -> None:
    with pytest.raises(MappingSyntaxError, match=re.escape(said)) as refused:
        parse_mapping(expression)
    assert str(refused.value).endswith("at character 11")


def test_the_longest_index_is_that_of_json_readers() -> None:
    assert parse_mapping("$.a.result[9007199254740991]") == ("a", (2**53 - 1,))
