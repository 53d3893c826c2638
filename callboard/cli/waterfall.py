"""Draws a trace as a waterfall: a line for each span, below its parent.

The output is plain text of a bounded width, so it also fits files and logs. Reference: features.md
(Traces).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from callboard.cli.session import printable

Span = Mapping[str, Any]

NAME_WIDTH: Final = 36
BAR_WIDTH: Final = 40
AGENT_WIDTH: Final = 40
_OWN_NAME: Final = ("workflow", "node")
# The depth of indentation by operation. Operations that are not listed have depth 2.
_DEPTHS: Final = {"workflow": 0, "node": 1, "queue": 3, "dispatch": 3}
_NUMBERED: Final = ("attempt", "verification")


def draw(spans: Sequence[Span]) -> Iterator[str]:
    """Return the lines of a trace: name, bar, duration and status of each span, and its agent.

    The bar of an open span extends to the last known time; its duration is "open".
    """
    times = [time for span in spans for time in (_ms(span["startTime"]), _ms(span["endTime"]))]
    known = [time for time in times if time is not None]
    if not known:
        return
    first, last = min(known), max(known)
    for span in spans:  # the service lists a node before the spans of its parts
        start, end = _ms(span["startTime"]) or first, _ms(span["endTime"])
        name = _cut("  " * _DEPTHS.get(span["operationName"], 2) + _name(span), NAME_WIDTH)
        bar = _bar(start, last if end is None else end, first, last)
        took = "open" if end is None else f"{end - start} ms"
        status = span.get("outcome") or span["status"]
        agent = span["agentDid"] if span["operationName"] in _NUMBERED else None
        line = f"{name:<{NAME_WIDTH}}  |{bar}|  {took:>10}  {status}"
        yield line if agent is None else f"{line}  {_cut(printable(agent), AGENT_WIDTH)}"


def _name(span: Span) -> str:
    """Return a span's operation, with the node's name or the number of the attempt."""
    operation = str(span["operationName"])
    if operation in _OWN_NAME:
        return " ".join(printable(str(one)) for one in (operation, span.get("nodeId")) if one)
    number = span.get("attempt") if operation in _NUMBERED else None
    return operation if number is None else f"{operation} {number}"


def _bar(start: int, end: int, first: int, last: int) -> str:
    """Return the bar of a span: at least one character, at its place in the trace's time."""
    whole = max(1, last - first)
    begin = min(BAR_WIDTH - 1, (start - first) * BAR_WIDTH // whole)
    width = max(1, min(BAR_WIDTH - begin, -(-(end - start) * BAR_WIDTH // whole)))
    return (" " * begin + "█" * width).ljust(BAR_WIDTH)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _ms(time: str | None) -> int | None:
    return None if time is None else round(datetime.fromisoformat(time).timestamp() * 1_000)
