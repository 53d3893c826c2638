"""Money is conserved: random histories of all commands together, against the real Postgres and a
model of plain integers (the rules and the model are in tests/ledger/machine).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final, get_args

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from core.workflow.events import Record
from ledger.features.auctions import KeepBid
from ledger.features.disputes import GiveFeedback
from ledger.features.inheritance import CancelInheritance
from ledger.features.peer_money import SettlePeer
from ledger.features.receipts import SubmitReceipt
from ledger.features.shards import JoinCluster, TakeShards
from ledger.features.trust import NoteAuditedRead
from ledger.features.workflow_commands import (
    ChangeTrigger,
    CreateTrigger,
    EndTrigger,
    NoteRun,
)
from ledger.registry import KINDS
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.machine.auctions import AuctionRules
from tests.ledger.machine.ends import EndRules
from tests.ledger.machine.extremes import ExtremeRules
from tests.ledger.machine.members import MemberRules
from tests.ledger.machine.reviews import ReviewRules
from tests.ledger.machine.stakes import StakeRules
from tests.ledger.machine.trust import TrustRules

STEPS_MIN: Final = 2_000
STEPS_SOAK: Final = 10_000  # money.md
# Histories are random, and the rarest entries come late in some. A kind of entry or of command that
# has not occurred by then has a rule that cannot reach it any more.
STEPS_MAX: Final = 40_000
# How often each command occurs at least, in the soak.
APPLIED_MIN: Final = 5
# A command whose plan's module names none of these moves no money, and no rule has to use it.
_MONEY: Final = re.compile(r"wallet|escrow|balance|stake|_micro")
# Other commands that no rule uses, each with the reason; every other one the machine has applied.
WITHOUT_MONEY: Final[dict[type, str]] = {
    CancelInheritance: "ends what has not moved anything",
    NoteAuditedRead: "says what was read",
    SettlePeer: "moves credits between two wallets as CollectCredits does, and nothing else",
    SubmitReceipt: "what a party says of a node",
    GiveFeedback: "an opinion, which moves and counts nothing",
    KeepBid: "a bid that decides nothing",
    **dict.fromkeys(
        (CreateTrigger, ChangeTrigger, EndTrigger, NoteRun), "says what is published later, or not"
    ),
}
# Without them no command of a member is applied.
MEMBERS: Final = {JoinCluster, TakeShards}


class LedgerMachine(
    StakeRules, MemberRules, AuctionRules, EndRules, ReviewRules, TrustRules, ExtremeRules
):
    """Everything that moves money, repeats, lost writers; the model says what must come of it."""


@pytest.mark.slow
def test_money_is_conserved_in_every_history(
    shared_database: Database, request: pytest.FixtureRequest
) -> None:
    """As many steps as it takes for every command and every kind of entry to occur once; the soak
    takes 10,000 and more of other histories."""
    LedgerMachine.start(shared_database)
    seeds = count(int(request.config.getoption("--hypothesis-seed") or 0))
    while LedgerMachine.steps < STEPS_MIN or (
        LedgerMachine.steps < STEPS_MAX and missing(LedgerMachine)
    ):
        run_state_machine_as_test(
            seed(next(seeds))(LedgerMachine),
            settings=settings(
                max_examples=6,
                stateful_step_count=200,
                deadline=None,
                # A failure is shown as found: making it smaller against a database takes minutes.
                phases=(Phase.explicit, Phase.reuse, Phase.generate),
                suppress_health_check=list(HealthCheck),
            ),
        )
    assert not missing(LedgerMachine), LedgerMachine.applied
    assert not WITHOUT_MONEY.keys() & LedgerMachine.applied.keys(), "what moves no money has a rule"
    LedgerMachine.auditor.close()


def missing(machine: type[LedgerMachine], applied_min: int = 1) -> list[str]:
    """Return the commands, their records and kinds of entry that occurred too rarely so far."""
    planned = {kind for kind, how in KINDS.items() if _MONEY.search(_source_of(how.plan))}
    wanted = {*planned, *MEMBERS, *get_args(Record)} - WITHOUT_MONEY.keys()
    applied = machine.applied
    rare = [kind.__name__ for kind in wanted if applied[kind] < applied_min]
    occurred = entry_kinds(machine.auditor).items()
    return sorted([*rare, *(kind for kind, has_occurred in occurred if not has_occurred)])


def _source_of(plan: Callable[..., object]) -> str:
    return inspect.getsource(sys.modules[plan.__module__])


def entry_kinds(auditor: Auditor) -> dict[str, bool]:
    """Return every kind of entry that the schema knows, and whether it has occurred."""
    (check,) = auditor.connection.execute(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE conrelid = 'entry'::regclass AND conname = 'entry_kind_check'"
    ).fetchone()  # type: ignore[misc]
    rows: Iterable[tuple[str]] = auditor.connection.execute("SELECT DISTINCT kind FROM entry")
    seen = {kind for (kind,) in rows}
    return {kind: kind in seen for kind in re.findall(r"'(\w+)'", check)}


@pytest.mark.soak
def test_money_is_conserved_for_long(
    shared_database: Database, drawn_from: int, has_time: Callable[[], bool]
) -> None:
    """10,000 steps and five of every command in any case, and more if there is time; a failure is
    made smaller."""
    LedgerMachine.start(shared_database)
    for drawn in range(drawn_from, drawn_from + 100):
        rare = missing(LedgerMachine, APPLIED_MIN)
        if LedgerMachine.steps < STEPS_SOAK or rare or has_time():
            run_state_machine_as_test(
                seed(drawn)(LedgerMachine),
                settings=settings(
                    max_examples=12,
                    stateful_step_count=200,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
    assert not missing(LedgerMachine, APPLIED_MIN), LedgerMachine.applied
    LedgerMachine.auditor.close()
