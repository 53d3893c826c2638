"""Where a standby is made, and when one is ended."""

from __future__ import annotations

from core.shards.standby_place import BESIDE_MS_MAX, LedgerProcess, StandbyMove, StandbyPlace

NAMES = ("ledger", "ledger#1")
WRITER, OTHER = LedgerProcess("here", is_writer=True), LedgerProcess("there", is_writer=False)
BESIDE = LedgerProcess("here", is_writer=False)


def test_standby_is_made_on_another_machine() -> None:
    place = StandbyPlace(NAMES)
    move = place.move({"ledger": WRITER}, ["here", "there"], 0)
    assert move == StandbyMove("ledger#1", "there")
    move = place.move({"ledger#1": WRITER}, ["here", "there"], 0)
    assert move == StandbyMove("ledger", "there"), "whichever name is free"


def test_one_machine_has_no_standby() -> None:
    assert StandbyPlace(NAMES).move({"ledger": WRITER}, ["here"], 0) is None


def test_standby_elsewhere_stays() -> None:
    place = StandbyPlace(NAMES)
    for now_ms in (0, 2 * BESIDE_MS_MAX):
        assert place.move({"ledger": WRITER, "ledger#1": OTHER}, ["here", "there"], now_ms) is None


def test_standby_beside_the_writer_is_ended_when_no_hand_over_can_need_it() -> None:
    place, both = StandbyPlace(NAMES), {"ledger": WRITER, "ledger#1": BESIDE}
    assert place.move(both, ["here"], 5) is None
    assert place.move(both, ["here"], 5 + BESIDE_MS_MAX) is None
    assert place.move(both, ["here"], 6 + BESIDE_MS_MAX) == StandbyMove("ledger#1", "")
    assert place.move(both, ["here"], 7 + BESIDE_MS_MAX) is None, "the next one has its time"


def test_time_beside_the_writer_begins_anew_with_each_writer() -> None:
    place, both = StandbyPlace(NAMES), {"ledger": WRITER, "ledger#1": BESIDE}
    assert place.move(both, ["here"], 0) is None
    assert place.move({"ledger": BESIDE, "ledger#1": BESIDE}, ["here"], 1) is None
    assert place.move(both, ["here"], 2 * BESIDE_MS_MAX) is None


def test_nothing_is_changed_while_it_is_not_known_who_is_the_writer() -> None:
    place, machines = StandbyPlace(NAMES), ["here", "there"]
    for processes in ({"ledger": None}, {"ledger": OTHER}, {"ledger": WRITER, "ledger#1": None}):
        assert place.move(processes, machines, 0) is None
    assert place.move({"ledger": WRITER, "ledger#1": WRITER}, machines, 0) is None


def test_standby_on_a_machine_that_leaves_is_ended_at_once() -> None:
    place, both = StandbyPlace(NAMES), {"ledger": WRITER, "ledger#1": OTHER}
    assert place.move(both, ["here", "third"], 0) == StandbyMove("ledger#1", "")
    assert place.move({"ledger": WRITER}, ["here", "third"], 1) == StandbyMove("ledger#1", "third")
    # The writer's own machine may leave: the standby beside it has its time all the same.
    beside = {"ledger": WRITER, "ledger#1": BESIDE}
    assert place.move(beside, ["third"], 2) is None
