"""Input mapping expressions: `$.{node}.result.{path}` read once into steps.

The parser accepts the specification's form: dotted fields, `['x']` and `[n]`. jsonpath-ng parses;
plain spellings, nearly all in use, are parsed without it (2 µs against 250), and a test compares
the two. Spec: Input mapping expressions; contract.md section 5.
"""

from __future__ import annotations

import re
from functools import lru_cache

from jsonpath_ng import jsonpath
from jsonpath_ng.parser import JsonPathParser

from core.message import Message

Step = str | int

EXPRESSION_CHARS_MAX = 1_024
# jsonpath-ng takes up to 40 µs a character, and a manifest may have 50 unusual spellings.
UNUSUAL_CHARS_MAX = 256
EXPECTED = "$.{node}.result.{path} with dotted fields, ['field'] and [0] only"

# A field without brackets is a run of letters, digits, _ and -, in any script: `where` and `2nd`
# are fields too, although jsonpath-ng takes them for its own words and numbers.
_FIELD = r"[\w-]+"
_PLAIN = re.compile(rf"\$(?:\.{_FIELD}|\['[^'\"\\*]+'\]|\[\"[^'\"\\*]+\"\]|\[[0-9]{{1,9}}\])+")
_PLAIN_STEP = re.compile(rf"\.({_FIELD})|\[['\"]([^'\"]+)['\"]\]|\[([0-9]+)\]")
# Quotes that are not closed reach to the end: each of them would be read to there in vain.
_QUOTED_OR_FIELD = re.compile(rf"'(?:[^'\\]|\\.)*+'?|\"(?:[^\"\\]|\\.)*+\"?|(?<!\.)\.({_FIELD})")


class MappingSyntaxError(ValueError):
    """The text is not an input mapping expression; the message has the defect."""


class InputMapping(Message, frozen=True):
    """`input_name` takes the value at `steps` inside the result of node `source`."""

    input_name: str
    source: str
    steps: tuple[Step, ...]
    expression: str


def is_plain(expression: str) -> bool:
    """Say whether the expression is parsed without jsonpath-ng."""
    return _PLAIN.fullmatch(expression) is not None


@lru_cache(maxsize=8_192)
def parse_mapping(expression: str) -> tuple[str, tuple[Step, ...]]:
    """Return the node that the expression names and the steps inside its result.

    Raises `MappingSyntaxError`. Spec: Input mapping expressions.
    """
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise MappingSyntaxError(f"an expression of {len(expression)} characters")
    if is_plain(expression):
        steps = [
            int(index) if index else dotted or quoted
            for dotted, quoted, index in _PLAIN_STEP.findall(expression)
        ]
    elif len(expression) > UNUSUAL_CHARS_MAX:
        raise MappingSyntaxError(f"an unusual spelling of {len(expression)} characters")
    else:
        steps = parse_with_jsonpath_ng(expression)
    if len(steps) < 2 or not isinstance(steps[0], str) or steps[1] != "result":
        raise MappingSyntaxError("a path that does not begin with a node's name and result")
    return steps[0], tuple(steps[2:])


def parse_with_jsonpath_ng(expression: str) -> list[Step]:
    """Return every step after `$`, read by jsonpath-ng.

    Raises `MappingSyntaxError`.
    """
    quoted = _QUOTED_OR_FIELD.sub(
        lambda match: f"['{match[1]}']" if match[1] is not None else match[0], expression
    )
    try:
        tree = JsonPathParser().parse(quoted)
    except Exception as error:
        # The library raises its own errors, ply's, bare ones and RecursionError, depending on the
        # version; each means that this text is no path.
        raise MappingSyntaxError("text that is no JSONPath") from error
    steps: list[Step] = []
    while isinstance(tree, jsonpath.Child):
        steps.append(_step(tree.right))
        tree = tree.left
    if not isinstance(tree, jsonpath.Root):
        raise MappingSyntaxError(f"a {_kind(tree)}")
    steps.reverse()
    return steps


def _step(tree: object) -> Step:
    if isinstance(tree, jsonpath.Fields) and len(tree.fields) == 1 and tree.fields[0] != "*":
        field = tree.fields[0]
        if isinstance(field, str):
            return field
    if isinstance(tree, jsonpath.Index) and len(tree.indices) == 1 and tree.indices[0] >= 0:
        return int(tree.indices[0])
    raise MappingSyntaxError(f"a {_kind(tree)}")


def _kind(tree: object) -> str:
    name = type(tree).__name__.lower()
    if isinstance(tree, jsonpath.Fields | jsonpath.Index):
        return "wildcard, a negative index or several at once"
    return {"child": "group", "descendants": "search at any depth (..)"}.get(name, name)
