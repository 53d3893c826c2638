"""Leases: who lives, by the ledger's own running time."""

from __future__ import annotations

from core.shards.leases import LEASE_MS, STARVED_MS, TICK_MS_MAX, LeaseTable

STEP_MS = 500


class Clock:
    """Lets time pass for a table; `renewing` renew at each step."""

    def __init__(self, *members: str) -> None:
        self.now_ms = 0
        self.table = LeaseTable(0)
        for one in members:
            self.table.grant(one)

    def run(self, ms: int, *renewing: str) -> None:
        """Let time pass in steps."""
        for _ in range(ms // STEP_MS):
            self.now_ms += STEP_MS
            self.table.tick(self.now_ms)
            for one in renewing:
                assert self.table.renew(one)


def test_a_member_that_renews_lives_and_one_that_is_silent_does_not() -> None:
    clock = Clock("a", "b", "c")
    clock.run(LEASE_MS, "a", "b")
    assert clock.table.is_live("c")
    clock.run(STEP_MS, "a", "b")
    assert not clock.table.is_live("c")
    assert clock.table.is_live("a")


def test_an_expired_lease_is_renewed_as_long_as_the_member_is_known() -> None:
    clock = Clock("a", "b", "c")
    clock.run(LEASE_MS + STEP_MS, "a", "b")
    assert clock.table.renew("c")
    assert clock.table.is_live("c")


def test_a_freeze_of_the_ledger_expires_no_lease() -> None:
    clock = Clock("a", "b")
    clock.run(1_000, "a", "b")
    clock.now_ms += 60_000
    clock.table.tick(clock.now_ms)
    assert clock.table.is_live("a")
    assert clock.table.is_live("b")
    clock.run(LEASE_MS - TICK_MS_MAX + STEP_MS, "a")
    assert not clock.table.is_live("b"), "time counts again afterwards"


def test_a_clock_that_goes_back_takes_no_time_away() -> None:
    clock = Clock("a", "b", "c")
    clock.run(LEASE_MS + STEP_MS, "a", "b")
    clock.table.tick(0)
    assert not clock.table.is_live("c")


def test_unknown_and_ended_members_do_not_live_and_cannot_renew() -> None:
    clock = Clock("a")
    assert not clock.table.is_live("b")
    assert not clock.table.renew("b")
    clock.table.end("a")
    assert not clock.table.is_live("a")
    assert not clock.table.renew("a")
    clock.table.forget("a")
    assert not clock.table.renew("a")


def test_when_more_than_half_fall_silent_none_is_taken_from_for_a_while() -> None:
    clock = Clock("a", "b", "c")
    clock.run(LEASE_MS + STEP_MS, "a")
    assert clock.table.is_live("b")
    assert clock.table.is_live("c")
    clock.run(STARVED_MS - LEASE_MS - 2 * STEP_MS, "a")
    assert clock.table.is_live("b")
    clock.run(2 * STEP_MS, "a")
    assert not clock.table.is_live("b")
    assert not clock.table.is_live("c")
    clock.run(STARVED_MS, "a")
    assert not clock.table.is_live("b"), "the same silence is no second reason"


def test_the_only_member_is_not_starved() -> None:
    clock = Clock("a")
    clock.run(LEASE_MS + STEP_MS)
    assert not clock.table.is_live("a")


def test_one_that_has_ended_does_not_count_as_silent() -> None:
    clock = Clock("a", "b", "c")
    clock.table.end("b")
    clock.run(LEASE_MS + STEP_MS, "a")
    assert not clock.table.is_live("c"), "half of two, not more"
