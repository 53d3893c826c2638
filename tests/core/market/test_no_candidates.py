"""Why no agent can take a node, in words. Decision requests-json-and-client."""

from __future__ import annotations

import time

import pytest

from core.market.no_candidates import (
    HINTS_PER_S,
    LOOKED_AT_MAX,
    SCANNED_MAX,
    CapabilityHints,
    bids_text,
    explain,
)

KNOWN = ("cap.text.shout.v1", "cap.text.whisper.v1", "cap.web.fetch.v1", "cap.web.fetch.v1@1.0.0")


def test_it_says_how_many_offer_it_and_why_each_is_left_out() -> None:
    reasons = ["agent_offline", "failed_before", "agent_offline"]
    said = explain("cap.a", 3, reasons)
    assert said == (
        "no agent can take 'cap.a': 3 agents offer it (2 offline, 1 already failed for this node)"
    )
    assert explain("cap.a", 1, ["agent_revoked"]).endswith(": 1 agent offers it (1 revoked)")
    assert explain("cap.a", 0, [], "; did you mean 'cap.b'?") == (
        "no agent can take 'cap.a': no agent offers it; did you mean 'cap.b'?"
    )


def test_of_very_many_only_the_first_are_looked_at() -> None:
    said = explain("cap.a", 10**6, ("agent_offline" for _ in range(10**6)))
    assert said.endswith(f"{LOOKED_AT_MAX} offline, further agents not examined)")


def test_an_auction_says_why_no_bid_wins() -> None:
    assert (
        bids_text(0, 0, (), 2) == "no bid is eligible: 2 agents offer the capability, none has bid"
    )
    said = bids_text(5, 2, ["above_reserve", "above_reserve", "low_reputation"], 5)
    assert said == (
        "no bid is eligible: of 5 bids 2 above the reserve price, 1 low reputation, 2 not eligible"
    )


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("cap.text.shuot.v1", "cap.text.shout.v1"),
        ("cap.text.shout", "cap.text.shout.v1"),
        ("cap.txt.shout.v1", "cap.text.shout.v1"),
        ("cap_web_fetch_v1", "cap.web.fetch.v1"),
        ("Cap.Web.Fetch.V1", "cap.web.fetch.v1"),
        ("qqqqqqqqqq", None),
        ("x", None),
    ],
)
def test_the_nearest_capability_is_named(asked: str, meant: str | None) -> None:
    hint = CapabilityHints().find(asked, KNOWN, 0)
    assert hint == ("" if meant is None else f"; did you mean '{meant}'?")


def test_hints_are_bounded_in_number_and_time() -> None:
    many = [f"cap.some.thing{number}.v1" for number in range(100_000)]
    hints = CapabilityHints()
    began = time.thread_time()
    found = [hints.find(f"cap.some.thong{number}.v1", many, 1) for number in range(1_000)]
    assert sum(map(bool, found)) <= HINTS_PER_S
    assert time.thread_time() - began < 0.5
    meant = "cap.some.thing77.v1"
    assert hints.find("cap.some.thong77.v1", many, 1_001) == f"; did you mean '{meant}'?"
    assert len(many) > SCANNED_MAX
