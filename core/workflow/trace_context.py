"""W3C Trace Context: what a caller sends with a publish, and which trace a workflow belongs to.

A workflow continues the trace of the `traceparent` that its publish brought. Without one, its trace
id follows from its own id. Reference: features.md (Traces).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from core.ids import trace_id

# A later version may add fields after another dash.
_FORM: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(-.*)?",
    re.DOTALL,
)
_FIRST_VERSION: Final = b"00"
# The flags that have a meaning: sampled, and a random trace id. The others are sent on as 0.
_SAMPLED: Final = 0x01
_KNOWN_FLAGS: Final = 0x03


class TraceContext(NamedTuple):
    """The trace that a workflow belongs to.

    `parent_span_id`: the caller's span, None without one. `flags`: two hexadecimal digits.
    """

    trace_id: str
    parent_span_id: str | None
    flags: str

    @property
    def is_sampled(self) -> bool:
        """Whether the caller may have recorded its own part of the trace."""
        return bool(int(self.flags, 16) & _SAMPLED)

    def traceparent(self, span_id: str) -> str:
        """Return the header that continues the trace below a span."""
        return f"00-{self.trace_id}-{span_id}-{self.flags}"


def read_traceparent(header: bytes | None) -> str | None:
    """Return a caller's `traceparent` in the form of version 00.

    Args:
        header: its value, None when it was not sent.

    Returns: None without a valid one: W3C Trace Context asks to ignore any other.
    """
    match = None if header is None else _FORM.fullmatch(header)
    if match is None or (match[1] == _FIRST_VERSION and match[5] is not None):
        return None
    flags = int(match[4], 16) & _KNOWN_FLAGS
    return f"00-{match[2].decode()}-{match[3].decode()}-{flags:02x}"


def trace_of(workflow_id: str, traceparent: str | None) -> TraceContext:
    """Return the trace that a workflow belongs to.

    Args:
        traceparent: as `read_traceparent` returned it at the publish.
    """
    if traceparent is None:
        return TraceContext(trace_id(workflow_id), None, "01")
    _, trace, parent, flags = traceparent.split("-")
    return TraceContext(trace, parent, flags)
