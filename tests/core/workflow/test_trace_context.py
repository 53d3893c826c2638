"""The `traceparent` of callers: which are taken, and what agents are sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.workflow.traces import read_traceparent, trace_of

WORKFLOW = "0198c0de-0000-7000-8000-000000000001"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALID = f"00-{TRACE}-{PARENT}-01"


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        (VALID, VALID),
        (f"00-{TRACE}-{PARENT}-00", f"00-{TRACE}-{PARENT}-00"),
        (f"00-{TRACE}-{PARENT}-03", f"00-{TRACE}-{PARENT}-03"),
        # Flags without a meaning are sent on as 0, and so is another version as this one.
        (f"00-{TRACE}-{PARENT}-ff", f"00-{TRACE}-{PARENT}-03"),
        (f"01-{TRACE}-{PARENT}-01", VALID),
        (f"fe-{TRACE}-{PARENT}-01-what-comes-later", VALID),
        (f"fe-{TRACE}-{PARENT}-01-", VALID),
    ],
)
def test_a_valid_traceparent_is_taken(sent: str, taken: str) -> None:
    assert read_traceparent(sent.encode()) == taken


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "00",
        f"ff-{TRACE}-{PARENT}-01",
        f"0-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT.upper()}-01",
        f"0A-{TRACE}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-0G",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE[:-1]}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}a-01",
        f"{VALID}-more",
        f"{VALID}\n",
        f" {VALID}",
        f"01-{TRACE}-{PARENT}-01more",
        f"{VALID}, {VALID}",
        VALID.replace("-", "_"),
        f"00-{TRACE[:-1]}١-{PARENT}-01",
    ],
)
def test_any_other_is_ignored(sent: str) -> None:
    assert read_traceparent(sent.encode()) is None


@given(st.binary(max_size=200))
def test_what_is_taken_of_any_bytes_can_be_read_back(sent: bytes) -> None:
    taken = read_traceparent(sent)
    assert taken is None or read_traceparent(taken.encode()) == taken


def test_a_workflow_without_one_has_a_trace_of_its_own() -> None:
    assert read_traceparent(None) is None
    own = trace_of(WORKFLOW, None)
    assert own == (WORKFLOW.replace("-", ""), None, "01")
    assert own.is_sampled
    assert read_traceparent(own.traceparent("c" * 16).encode()) is not None


def test_a_workflow_continues_its_callers_trace() -> None:
    continued = trace_of(WORKFLOW, f"00-{TRACE}-{PARENT}-02")
    assert continued == (TRACE, PARENT, "02")
    assert not continued.is_sampled
    assert continued.traceparent("c" * 16) == f"00-{TRACE}-{'c' * 16}-02"
