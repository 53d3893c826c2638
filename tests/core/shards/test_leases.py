"""Leases of members: who lives, by the ledger's own running time."""

from __future__ import annotations

import pytest

from core.shards.leases import (
    FIRST_LEASE_MS,
    LEASE_MS,
    QUIET_MS,
    RENEWAL_MS,
    STARVED_MS,
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


def test_freezes_of_the_ledger_count_for_nothing() -> None:
    """Found by the simulation: of a ledger that is suspended again and again each one counted."""
    told = Told("a", "b", "c")
    for _ in range(5):
        told.now_ms += 60_000
        told.table.tick(told.now_ms)
        told.pass_ms(100, "b", "c")
    assert told.live("a", "b", "c") == [True] * 3
    told.pass_ms(LEASE_MS - 500, "b", "c")
    assert told.live("a") == [True]
    told.pass_ms(100, "b", "c")
    assert told.live("a") == [False]


def test_ticks_as_far_apart_as_renewals_count() -> None:
    told = Told("a", "b", "c")
    for _ in range(LEASE_MS // RENEWAL_MS + 1):
        told.now_ms += RENEWAL_MS
        told.table.tick(told.now_ms)
        assert told.table.renew("b")
        assert told.table.renew("c")
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


def test_starvation_is_seen_before_the_first_of_many_leases_expires() -> None:
    """Their last renewals are as far apart as their intervals."""
    told = Told("a", "b", "c")
    told.pass_ms(RENEWAL_MS, "a", "c")
    told.pass_ms(LEASE_MS - RENEWAL_MS + 100, "a")
    assert told.live("b", "c") == [True, True]


def test_one_that_never_comes_back_is_not_spared_because_others_are_often_late() -> None:
    told = Told("a", "b", "c")
    late_ms = QUIET_MS + 200
    for _ in range(STARVED_MS // late_ms):
        told.pass_ms(late_ms, "a")
        assert told.live("b") == [True]
        assert told.table.renew("c")
    told.pass_ms(late_ms, "a")
    assert told.live("b", "c") == [False, True]


def test_member_from_which_a_take_is_open_is_not_acknowledged() -> None:
    """It had expired when the Take was planned, and a renewal does not undo that."""
    told = Told("a", "b", "c")
    told.pass_ms(LEASE_MS + 100, "a", "b")
    assert [told.table.may_take(name) for name in ("a", "c", "nobody")] == [False, True, True]
    assert told.table.renew("c"), "it lives all the same"
    acknowledged = [told.table.may_acknowledge(name) for name in ("a", "c", "nobody")]
    assert acknowledged == [True, False, True]
    told.table.end_takes()
    assert told.table.may_acknowledge("c")
