"""Input mapping expressions. Spec: Input mapping expressions."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from core.records.mapping import (
    UNUSUAL_CHARS_MAX,
    MappingSyntaxError,
    Step,
    is_plain,
    parse_mapping,
    parse_with_jsonpath_ng,
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
    "$.a.result.*",
    "$.a.result['*']",
    "$.a.result[*]",
    "$.a.result[-1]",
    "$.a.result[0:2]",
    "$.a.result[0,1]",
    "$.a.result['x','y']",
    "$.a.result[?(@.x > 1)]",
    "$.a.result.`parent`",
    "$.a.(result.b)",
    "$.a.result.b where c",
    "$.a.result | $.b.result",
    "$.a.result.",
    "$.a.result x",
    "$[0].result",
    "$.a[0]",
    "$.a.result" + ".x" * 600,
    "(" * 500,
    "{{a}}",
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
def test_plain_spellings_read_without_jsonpath_ng_mean_what_it_says(
    node: str, steps: list[Step], is_dotted: bool
) -> None:
    expression = "$" + "".join(spelt(step, is_dotted) for step in (node, "result", *steps))
    assert is_plain(expression)
    assert parse_mapping(expression) == (node, tuple(steps))
    assert parse_with_jsonpath_ng(expression) == [node, "result", *steps]


@given(st.text(st.sampled_from("$.ab[]'\"0*?@()|`:, \\-é"), max_size=20))
def test_any_text_is_read_as_jsonpath_ng_reads_it_or_refused(text: str) -> None:
    try:
        source, steps = parse_mapping(text)
    except MappingSyntaxError:
        return
    assert parse_with_jsonpath_ng(text) == [source, "result", *steps]


def test_an_unusual_spelling_is_shorter_than_a_plain_one_may_be() -> None:
    """jsonpath-ng took 42 ms for 1,000 characters, and is not asked for so many."""
    field = "x" * (UNUSUAL_CHARS_MAX - len("$ .a.result."))
    assert parse_mapping(f"$ .a.result.{field}") == ("a", (field,))
    with pytest.raises(MappingSyntaxError, match="unusual"):
        parse_mapping(f"$ .a.result.{field}x")
    assert parse_mapping(f"$.a.result.{field}xx") == ("a", (f"{field}xx",))
