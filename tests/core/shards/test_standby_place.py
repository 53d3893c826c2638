"""Where a standby is made, and when one is ended."""

from __future__ import annotations

from core.shards.standby_place import LedgerProcess, StandbyMove, standby_move

NAMES = ("ledger", "ledger#1")
WRITER, OTHER = LedgerProcess("here", is_writer=True), LedgerProcess("there", is_writer=False)
BESIDE = LedgerProcess("here", is_writer=False)
BOTH = ["here", "there"]


def test_standby_is_made_on_another_machine() -> None:
    assert standby_move(NAMES, {"ledger": WRITER}, BOTH) == StandbyMove("ledger#1", "there")
    move = standby_move(NAMES, {"ledger#1": WRITER}, BOTH)
    assert move == StandbyMove("ledger", "there"), "whichever name is free"


def test_one_machine_has_no_standby_and_leaves_one_that_a_hand_over_has_made() -> None:
    assert standby_move(NAMES, {"ledger": WRITER}, ["here"]) is None
    assert standby_move(NAMES, {"ledger": WRITER, "ledger#1": BESIDE}, ["here"]) is None


def test_standby_elsewhere_stays() -> None:
    assert standby_move(NAMES, {"ledger": WRITER, "ledger#1": OTHER}, BOTH) is None


def test_standby_beside_the_writer_is_ended_when_there_is_another_machine() -> None:
    move = standby_move(NAMES, {"ledger": WRITER, "ledger#1": BESIDE}, BOTH)
    assert move == StandbyMove("ledger#1", "")


def test_nothing_is_changed_while_it_is_not_known_who_is_the_writer() -> None:
    for processes in ({"ledger": None}, {"ledger": OTHER}, {"ledger": WRITER, "ledger#1": None}):
        assert standby_move(NAMES, processes, BOTH) is None
    assert standby_move(NAMES, {"ledger": WRITER, "ledger#1": WRITER}, BOTH) is None


def test_standby_on_a_machine_that_leaves_is_ended_at_once() -> None:
    both, machines = {"ledger": WRITER, "ledger#1": OTHER}, ["here", "third"]
    assert standby_move(NAMES, both, machines) == StandbyMove("ledger#1", "")
    assert standby_move(NAMES, {"ledger": WRITER}, machines) == StandbyMove("ledger#1", "third")
