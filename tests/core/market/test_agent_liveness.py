"""Availability: the newest word of an agent or about it, within its time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.market.agent_liveness import (
    HEARTBEAT_TTL_MS,
    NO_SIGNALS,
    PROBE_TTL_MS,
    Availability,
    Liveness,
    availability,
    availability_share,
    drop_older_signals,
    load_share,
    next_change_ms,
    reported_load,
)
from core.records.statuses import HEARTBEAT_STATUSES

TTL = HEARTBEAT_TTL_MS


@pytest.mark.parametrize(
    ("live", "now_ms", "expected"),
    [
        # Never heard, never probed.
        (NO_SIGNALS, 10**12, Availability.AVAILABLE),
        # A heartbeat, to the last millisecond of its time and one after it.
        (Liveness("healthy", heartbeat_ms=0), TTL, Availability.AVAILABLE),
        (Liveness("healthy", heartbeat_ms=0), TTL + 1, Availability.OFFLINE),
        (Liveness("draining", heartbeat_ms=0), TTL, Availability.UNHEALTHY),
        (Liveness("draining", heartbeat_ms=0), TTL + 1, Availability.OFFLINE),
        (Liveness("stopped", heartbeat_ms=0), 1, Availability.OFFLINE),
        # A form without a status says no more than that the agent lives.
        (Liveness(None, heartbeat_ms=0), 1, Availability.AVAILABLE),
        # A probe after an overdue heartbeat.
        (Liveness("healthy", None, 0, TTL + 1, True), TTL + 2, Availability.AVAILABLE),
        (Liveness("healthy", None, 0, TTL + 1, True), 2 * TTL + 1, Availability.OFFLINE),
        (Liveness("healthy", None, 0, TTL + 1, False), TTL + 2, Availability.OFFLINE),
        (Liveness("draining", None, 0, TTL + 1, True), TTL + 2, Availability.AVAILABLE),
        # A probe within the heartbeat's time does not overrule the agent's own word.
        (Liveness("draining", None, 0, 5, True), 10, Availability.UNHEALTHY),
        (Liveness("healthy", None, 0, 5, False), 10, Availability.OFFLINE),
        # A heartbeat after a probe is the newer word.
        (Liveness("healthy", None, 10, 5, False), 11, Availability.AVAILABLE),
        # Never heard, but probed: the failed probe speaks for ten minutes.
        (Liveness(probe_ms=0, is_probe_ok=False), PROBE_TTL_MS - 1, Availability.OFFLINE),
        (Liveness(probe_ms=0, is_probe_ok=False), PROBE_TTL_MS, Availability.AVAILABLE),
        (Liveness(probe_ms=0, is_probe_ok=True), 10 * TTL, Availability.AVAILABLE),
    ],
)
def test_the_newest_word_within_its_time_counts(
    live: Liveness, now_ms: int, expected: Availability
) -> None:
    assert availability(live, now_ms) is expected


def test_silence_counts_from_the_time_at_which_the_service_can_have_heard_the_agent() -> None:
    live = Liveness("draining", heartbeat_ms=0)
    back_ms = 10 * TTL
    assert availability(live, back_ms) is Availability.OFFLINE
    said = availability(live, back_ms + TTL, silent_from_ms=back_ms)
    assert said is Availability.UNHEALTHY, "its last word"
    late = availability(live, back_ms + TTL + 1, silent_from_ms=back_ms)
    assert late is Availability.OFFLINE
    probed = Liveness("healthy", None, 0, back_ms, False)
    found = availability(probed, back_ms + 1, silent_from_ms=back_ms)
    assert found is Availability.OFFLINE, "a failed probe is no silence"


def test_no_status_means_that_an_agent_was_deregistered() -> None:
    assert Availability.INACTIVE not in HEARTBEAT_STATUSES.values()


def test_what_was_known_before_the_card_was_stored_is_forgotten() -> None:
    live = Liveness("busy", 0.7, 5, 8, False)
    assert drop_older_signals(live, 5) == live
    assert drop_older_signals(live, 6) == Liveness(probe_ms=8, is_probe_ok=False)
    assert drop_older_signals(live, 9) == NO_SIGNALS
    assert drop_older_signals(Liveness("busy", 0.7, 5), 5) == Liveness("busy", 0.7, 5)


@pytest.mark.parametrize(
    ("load", "share"),
    [(0, 0.0), (0.5, 0.5), (1, 1.0), (1.5, 0.015), (50, 0.5), (100, 1.0), (101, None), (-1, None)],
)
def test_a_load_is_a_share_up_to_one_and_a_percentage_above(
    load: float, share: float | None
) -> None:
    assert load_share(load) == share


def test_a_load_is_forgotten_with_its_heartbeat() -> None:
    live = Liveness("busy", 0.7, heartbeat_ms=0)
    assert reported_load(live, TTL) == 0.7
    assert reported_load(live, TTL + 1) == 0.0
    assert reported_load(NO_SIGNALS, 0) == 0.0


TIMES_MS = st.none() | st.integers(0, 2 * PROBE_TTL_MS)


@given(
    st.builds(Liveness, st.just("healthy"), st.just(0.5), TIMES_MS, TIMES_MS, st.booleans()),
    st.integers(0, 3 * PROBE_TTL_MS),
    st.integers(0, 2 * PROBE_TTL_MS),
)
def test_time_alone_changes_nothing_before_it_is_said_to(
    live: Liveness, now_ms: int, silent_from_ms: int
) -> None:
    def known(at_ms: int) -> tuple[Availability, float]:
        return availability(live, at_ms, silent_from_ms=silent_from_ms), reported_load(live, at_ms)

    end_ms = next_change_ms(live, now_ms, silent_from_ms=silent_from_ms)
    assert end_ms > now_ms
    last_ms = int(min(end_ms, 10 * PROBE_TTL_MS)) - 1
    times_ms = {now_ms, last_ms, (now_ms + last_ms) // 2}
    times_ms |= set(range(now_ms, last_ms, HEARTBEAT_TTL_MS // 2))
    assert {known(at_ms) for at_ms in times_ms} == {known(now_ms)}


@pytest.mark.parametrize(
    ("said", "share"),
    [
        ({}, 1.0),
        ({"load": 1.0}, 0.6),
        ({"queue_depth": 10}, 0.8),
        ({"queue_depth": 11}, 0.8),
        ({"latency_ms": 1_000.0}, 0.6),
        ({"latency_ms": 9_999.0}, 0.6),
        ({"load": 0.1, "queue_depth": 1, "latency_ms": 100.0}, 0.9),
        ({"load": 1.0, "queue_depth": 10, "latency_ms": 1_000.0}, 0.0),
    ],
)
def test_the_share_that_is_free_falls_with_load_queue_and_latency(
    said: dict[str, Any], share: float
) -> None:
    """The HTTP reference: 1 - 0.4 load - 0.2 queue/10 - 0.4 latency/1 s."""
    known = {"load": None, "queue_depth": None, "latency_ms": None, **said}
    assert availability_share(Availability.AVAILABLE, **known) == share
    for takes_no_work in (Availability.UNHEALTHY, Availability.OFFLINE):
        assert availability_share(takes_no_work, **known) == 0
