"""Leases of members: who lives, by the ledger's own running time."""

from __future__ import annotations

import pytest

from core.shards.leases import (
    FIRST_LEASE_MS,
    LEASE_MS,
    STARVED_MS,
    TICK_MS_MAX,
    LeaseTable,
)


class Told:
    """A table whose time goes on in small ticks, with members that renew all the while."""

    def __init__(self, *members: str) -> None:
        self.now_ms = 5_000
        self.table = LeaseTable(self.now_ms)
        for member in members:
            self.table.grant(member)

    def pass_ms(self, ms: int, *alive: str) -> None:
        for _ in range(ms // 100):
            self.now_ms += 100
            self.table.tick(self.now_ms)
            for member in alive:
                assert self.table.renew(member)

    def live(self, *members: str) -> list[bool]:
        return [self.table.is_live(member) for member in members]


def test_lease_lasts_for_its_time_and_renewing_begins_it_anew() -> None:
    told = Told("a", "b", "c")
    told.pass_ms(LEASE_MS, "b", "c")
    assert told.live("a", "b") == [True, True]
    told.pass_ms(100, "b", "c")
    assert told.live("a", "b") == [False, True]
    assert told.table.renew("a"), "its shards may stand yet"
    assert told.live("a") == [True]


def test_unknown_and_ended_members_do_not_live_and_renew_nothing() -> None:
    told = Told("a", "b")
    told.table.end("a")
    told.table.end("nobody")
    told.table.forget("b")
    assert [told.table.renew(name) for name in ("a", "b", "nobody")] == [False] * 3
    assert told.live("a", "b", "nobody") == [False] * 3


def test_first_lease_outlasts_what_another_ledger_has_acknowledged() -> None:
    told = Told("b", "c")
    told.table.grant_first("a")
    told.pass_ms(500, "b", "c")
    assert told.table.renew("a"), "a renewal shortens no lease"
    told.pass_ms(FIRST_LEASE_MS - 500, "b", "c")
    assert told.live("a") == [True]
    told.pass_ms(100, "b", "c")
    assert told.live("a") == [False]


def test_a_long_freeze_of_the_ledger_counts_as_one_tick() -> None:
    told = Told("a", "b", "c")
    told.now_ms += 60_000
    told.table.tick(told.now_ms)
    assert told.live("a", "b", "c") == [True] * 3
    told.pass_ms(LEASE_MS - TICK_MS_MAX, "b", "c")
    assert told.live("a") == [True]
    told.pass_ms(100, "b", "c")
    assert told.live("a") == [False]


def test_clock_that_goes_back_ends_no_lease() -> None:
    told = Told("a", "b", "c")
    told.table.tick(told.now_ms - 4_000)
    told.table.tick(told.now_ms)
    assert told.live("a") == [True]


@pytest.mark.parametrize(("silent", "is_starved"), [(1, False), (2, False), (3, True), (4, True)])
def test_more_than_half_of_the_members_starve_and_do_not_die(silent: int, is_starved: bool) -> None:
    names = "abcd"
    told = Told(*names)
    told.pass_ms(LEASE_MS + 100, *names[silent:])
    assert told.live(*names[:silent]) == [is_starved] * silent
    told.pass_ms(STARVED_MS - LEASE_MS - 200, *names[silent:])
    assert told.live(*names[:silent]) == [is_starved] * silent
    told.pass_ms(200, *names[silent:])
    assert told.live(*names[:silent]) == [False] * silent, "once for each silence"


def test_those_that_never_came_back_do_not_make_half_of_all() -> None:
    """With three that are long dead, each further death would wait five times as long."""
    told = Told("dead 1", "dead 2", "dead 3", "a", "b", "c")
    told.pass_ms(STARVED_MS + LEASE_MS + 1_000, "a", "b", "c")
    told.pass_ms(LEASE_MS + 100, "b", "c")
    assert told.live("a", "b", "c") == [False, True, True]


def test_the_only_member_is_not_half_of_anything() -> None:
    told = Told("a")
    told.pass_ms(LEASE_MS + 100)
    assert told.live("a") == [False]
