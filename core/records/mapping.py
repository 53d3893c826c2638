"""Input mapping expressions: `$.{node}.result.{path}` read once into steps.

The specification's form of RFC 9535: names after dots, `['x']`, `["x"]` and `[n]`; escapes are
decoded. After a dot a name may also begin with a digit and contain dashes, as nodes' names do.
Reference: features.md (Inputs).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from core.json_bounds import INTEGER_MAX
from core.message import Message

Step = str | int

EXPRESSION_CHARS_MAX = 1_024
EXPECTED = "$.{node}.result.{path} with dotted fields, ['field'] and [0] only"

_BLANK: Final = r"[ \t\n\r]*+"
_STEP: Final = re.compile(
    rf"{_BLANK}(?:\.(?P<name>[\w\x80-\ud7ff\ue000-\U0010ffff-]++)"
    rf"|\[{_BLANK}(?:'(?P<single>(?:[^'\\\x00-\x1f]|\\.)*+)'"
    rf'|"(?P<double>(?:[^"\\\x00-\x1f]|\\.)*+)"|(?P<index>0|[1-9][0-9]{{0,15}})){_BLANK}\])',
    re.ASCII,
)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "/": "/", "\\": "\\"}
# What is refused, by how it begins.
_REFUSED: Final = {
    "..": "a search at any depth",
    ".*": "a wildcard",
    "[*": "a wildcard",
    "[?": "a filter",
    "[-": "a negative index",
}


class MappingSyntaxError(ValueError):
    """The text is not an input mapping expression; the message has the defect."""


class InputMapping(Message, frozen=True):
    """`input_name` takes the value at `steps` inside the result of node `source`."""

    input_name: str
    source: str
    steps: tuple[Step, ...]
    expression: str


@lru_cache(maxsize=8_192)
def parse_mapping(expression: str) -> tuple[str, tuple[Step, ...]]:
    """Return the node that the expression names and the steps inside its result.

    Raises `MappingSyntaxError`. Reference: features.md (Inputs).
    """
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise MappingSyntaxError(f"an expression of {len(expression)} characters")
    if not expression.startswith("$"):
        raise MappingSyntaxError("a path that does not begin with $")
    steps: list[Step] = []
    at = 1
    while at < len(expression):
        match = _STEP.match(expression, at)
        if match is None:
            raise MappingSyntaxError(_defect(expression, at))
        steps.append(_step(match, at))
        at = match.end()
    if len(steps) < 2 or not isinstance(steps[0], str) or steps[1] != "result":
        raise MappingSyntaxError("a path that does not begin with a node's name and result")
    return steps[0], tuple(steps[2:])


def _step(match: re.Match[str], at: int) -> Step:
    name, index = match["name"], match["index"]
    if name is not None:
        return name
    place = f"at character {at + 1}"
    if index is not None:
        if int(index) > INTEGER_MAX:
            raise MappingSyntaxError(f"an index beyond 2^53 {place}")
        return int(index)
    is_single = match["single"] is not None
    text = match["single"] if is_single else match["double"]
    if "\\" not in text:
        return text
    known = {**_ESCAPED, "'": "'"} if is_single else {**_ESCAPED, '"': '"'}

    def decoded(escape: re.Match[str]) -> str:
        code, char = escape.groups()
        if code is None and char not in known:
            raise MappingSyntaxError(f"the unknown escape \\{char} in the name {place}")
        return known[char] if code is None else chr(int(code, 16))

    try:
        halves = _ESCAPE.sub(decoded, text)
        return halves.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise MappingSyntaxError(f"half of a surrogate pair in the name {place}") from None


def _defect(expression: str, at: int) -> str:
    """Return what is wrong from a position on."""
    rest = re.sub(r"[ \t\n\r]", "", expression[at:])
    found = _REFUSED.get(rest[:2])
    if found is None and re.match(r"\[[0-9]+[:,]|\[('[^']*'|\"[^\"]*\"),|\[:", rest):
        found = "several fields or indices at once"
    elif found is None and re.match(r"\[[0-9]", rest):
        found = "an index that is no whole number below 2^53"
    return f"{found or 'text that is not a step of a path'} at character {at + 1}"
