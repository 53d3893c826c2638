"""Every regular expression of the product takes time in proportion to its text, whatever the text.

The patterns are found by reading the modules, so that a new one is tried without being named here.
Those of pydantic are not: its engine is linear by construction.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.costs import cpu_s

ROOMS = ("core", "actors", "ledger", "serve_app", "federation", "callboard")
ROOT = Path(__file__).parents[2]
METHODS = ("match", "fullmatch", "search", "sub", "findall", "finditer", "split")
UNITS = (" ", "\n", "{", "}", "{ ", "a", "A0", "0", "-", ".", "_", ":", ",", "'", '"', "\\", "\\\\")
UNITS += ("[", "]", "[0]", "['a']", "['a'", "a.", ".a", "..", "did:", "$.", "é", "\x01", "'\\", "=")
OPENINGS = (
    "",
    "{{",
    "[",
    "$",
    "$.",
    "$['",
    '$["',
    "'",
    '"',
    "did:",
    "did:a:",
    "wait",
    "hb_1_",
    "h",
)
SHORT, LONG = 256, 8_192


def patterns() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Return (where, pattern, method) of every use of a module's pattern."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            source = path.read_text()
            if "re.compile(" not in source:
                continue
            where = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for name, value in vars(importlib.import_module(where)).items():
                if isinstance(value, re.Pattern):
                    for method in METHODS:
                        if re.search(rf"\b{name}\.{method}\b", source):
                            yield f"{where}.{name}.{method}", value, method


def use(pattern: re.Pattern[Any], method: str, text: str) -> Callable[[], object]:
    """Return the use of a pattern with one text."""
    given: Any = text.encode() if isinstance(pattern.pattern, bytes) else text
    apply = getattr(pattern, method)
    if method == "sub":
        return lambda: apply(given[:0], given)
    if method == "finditer":
        return lambda: list(apply(given))
    return lambda: apply(given)


def test_the_patterns_of_the_product_are_found() -> None:
    found = {where for where, _, _ in patterns()}
    assert "core.workflow.inputs._TEMPLATE.sub" in found
    assert len(found) > 10


@pytest.mark.parametrize(
    ("pattern", "method"),
    [pytest.param(pattern, method, id=where) for where, pattern, method in patterns()],
)
def test_pattern_takes_time_in_proportion_to_the_text(
    pattern: re.Pattern[Any], method: str
) -> None:
    """A template of 5,000 blanks held an owner for a minute: three quantifiers shared them."""
    for opening in OPENINGS:
        for unit in UNITS:
            short, long = (
                use(pattern, method, (opening + unit * length)[:length]) for length in (SHORT, LONG)
            )
            # What takes no millisecond for 8,192 characters is not worth a ratio.
            middle = use(pattern, method, (opening + unit * SHORT * 4)[: SHORT * 4])
            if cpu_s(middle) > 0.001:
                assert cpu_s(middle) < 12 * cpu_s(short), f"{opening!r} and many {unit!r}"
            if (taken := cpu_s(long)) > 0.002:
                assert taken < 4 * LONG / SHORT * cpu_s(short), f"{opening!r} and many {unit!r}"
