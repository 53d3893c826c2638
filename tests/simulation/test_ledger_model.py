"""The simulation's ledger held to the real one: the same commands, the same outcomes and books.

Two sources of commands: what whole simulated runs sent, batch by batch, and random sequences of
what no healthy owner would send. Compared are every outcome, every balance, and the rows from which
workflows are restored.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from core.errors import ErrorCode, QuarantineCode
from core.workflow.events import WorkflowChanged
from core.workflow.transitions import WorkflowStatus
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.owners.owner_commands import ClaimWorkflows, RegisterOwner
from ledger.reads.reader import LedgerReader
from ledger.trust.trust_commands import UnrevokeAgent
from ledger.workflows.unfinished import UnfinishedPages
from ledger.workflows.workflow_commands import QuarantineWorkflow, ResumeWorkflow
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor, connect
from tests.ledger.making import (
    AGENT,
    AT,
    OWNER,
    PAYER,
    Flow,
    card,
    commit_all,
    deposit,
    open_store,
    revoke,
    succeeded,
)
from tests.simulation.ledger_model import LedgerModel
from tests.simulation.test_simulation import market_of
from tests.simulation.world import OWNERS, World

pytestmark = pytest.mark.anyio

# Both refuse a payment; which of them depends on what the writer has read so far.
_REFUSED_CODES = (QuarantineCode.ALREADY_SETTLED, QuarantineCode.STEP_REFUSED)
_REFUSED_PAYMENTS = (ErrorCode.ALREADY_SETTLED, ErrorCode.INTERNAL_ERROR)
# Where the model leaves something out: columns that nothing is restored from.
_IGNORED = {"spent_micro", "created_ms", "started_ms", "completed_ms", "status"}


def shown(outcome: Outcome, like: Outcome) -> tuple[Any, ...]:
    """Return what of an outcome is compared: the model leaves entry ids and the like out."""
    error = "a payment" if outcome.error in _REFUSED_PAYMENTS else outcome.error
    result = {name: outcome.result.get(name) for name in like.result}
    if result.get("quarantined") in _REFUSED_CODES:
        result["quarantined"] = "a payment"
    return outcome.status, error, result


def assert_same(real: Sequence[Outcome], model: Sequence[Outcome], batch: list[Command]) -> None:
    """Every outcome of the store equals the model's."""
    for command, one, other in zip(batch, real, model, strict=True):
        assert shown(one, other) == shown(other, other), (command, one, other)


def assert_same_balances(url: str, model: LedgerModel) -> None:
    """Every account of the database has the balance that the model says, and no other has any."""
    with connect(url) as connection:
        rows = connection.execute("SELECT address, balance FROM account WHERE balance <> 0")
        real = dict(rows.fetchall())
    assert real == {address: micro for address, micro in model.balances.items() if micro}


def assert_same_market(url: str, model: LedgerModel) -> None:
    """Every round ended as the model says, with the same live bids; the same stakes were lost."""
    closed = model.auctions.closed
    with connect(url) as connection:
        rows = connection.execute(
            "SELECT workflow_id::text, node, round, winner_did, price_micro FROM auction"
            " WHERE status <> 'open'"
        ).fetchall()
        assert {row[:3]: row[3:] for row in rows} == {
            place: (end.winner_did, end.price_micro) for place, end in closed.items()
        }
        bids = connection.execute(
            "SELECT workflow_id::text, node, round, agent_did, amount_micro FROM bid"
            " WHERE NOT is_standing"
        ).fetchall()
        assert {bid[:4]: bid[4] for bid in bids} == {
            (*place, did): bid["amountMicro"]
            for place, of_round in model.auctions.bids.items()
            for did, bid in of_round.items()
        }
        lost = connection.execute(
            "SELECT workflow_id::text, node_id, amount FROM entry WHERE kind = 'stake_slash'"
        ).fetchall()
    slashed = [(*place[:2], lost) for place, (_, _, lost) in model.ended_locks.items() if lost]
    assert sorted(lost) == sorted(slashed)


async def assert_same_rows(reader: LedgerReader, model: LedgerModel, owner: str) -> None:
    """What an owner would restore from is the same."""
    real = {stored.id: stored for stored in (await UnfinishedPages(reader, owner).page(None))[0]}
    expected = {stored.id: stored for stored in model.unfinished(owner)}
    assert real.keys() == expected.keys()
    for workflow_id, stored in expected.items():
        row = {name: value for name, value in stored.row.items() if name not in _IGNORED}
        assert {name: real[workflow_id].row[name] for name in row} == row
        nodes = {node["name"]: _plain(node) for node in stored.nodes}
        assert {node["name"]: _plain(node) for node in real[workflow_id].nodes} == nodes


def _plain(node: dict[str, Any]) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in node.items()
    }


@asynccontextmanager
async def writer(database: Database) -> AsyncIterator[LedgerStore]:
    """Open the real ledger and close it."""
    store = await open_store(database.service_url)
    try:
        yield store
    finally:
        await store.close()


class RecordingModel(LedgerModel):
    """A model that remembers its batches, their outcomes, and when they were committed."""

    def __init__(self, model: LedgerModel) -> None:
        super().__init__(model._on_applied)
        self.batches: list[tuple[list[Command], list[Outcome], int]] = []

    def commit(self, commands: Sequence[Command]) -> list[Outcome]:
        """Commit and remember."""
        outcomes = super().commit(commands)
        self.batches.append((list(commands), outcomes, self.now_ms()))
        return outcomes


class RecordedWorld(World):
    """A world that keeps what it sent to its ledger."""

    def new_model(self) -> LedgerModel:
        """Return the ledger of this world."""
        self.recording = RecordingModel(super().new_model())
        return self.recording


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
async def test_store_says_the_same_as_the_model_in_a_simulated_run(
    seed: int, database: Database, auditor: Auditor
) -> None:
    world = RecordedWorld(seed, **market_of(seed))
    world.run()
    replayed = LedgerModel()
    agents: list[Command] = [
        card(did, owner_did=row["owner_did"]) for did, row in world.rows.items()
    ]
    async with writer(database) as store, LedgerReader(database.service_url, pool_size=1) as reader:
        await store.commit(agents, AT)  # of whom the model knows nothing
        for number, (batch, outcomes, now_ms) in enumerate(world.recording.batches):
            replayed.now_ms = partial(int, now_ms)
            replayed.commit(batch)
            assert_same(await commit_all(store, batch, now_ms), outcomes, batch)
            if number % 40 == 0:
                for owner in OWNERS:
                    await assert_same_rows(reader, replayed, owner)
    assert_same_balances(database.superuser_url, replayed)
    assert_same_market(database.superuser_url, replayed)
    assert replayed.balances == world.model.balances


class Chaos:
    """Random commands, most of them wrong in some way."""

    def __init__(self, seed: int, epoch: int) -> None:
        self.chance = random.Random(seed)
        self.epochs = {OWNER: epoch, "owner-2": 0}
        self.flows: list[Flow] = []
        self.sent: list[Command] = []

    def command(self) -> Command:
        """Return the next one."""
        if self.sent and self.chance.random() < 0.15:
            return self.chance.choice(self.sent)
        made = self.chance.choice(
            (self._deposit, self._start, self._claim, self._publish, self._publish, self._trust,
             self._stop_or_resume, self._stop_or_resume,
             self._advance, self._advance, self._advance, self._advance)
        )()  # fmt: skip
        self.sent.append(made)
        return made

    def _deposit(self) -> Command:
        return deposit(
            self.chance.randint(1, 20_000_000), key=f"d{self.chance.randrange(20)}",
            body=self.chance.choice((b"a", b"b")),
        )  # fmt: skip

    def _trust(self) -> Command:
        key, actor = f"t{self.chance.randrange(30)}", self.chance.choice((AGENT, PAYER))
        if self.chance.random() < 0.5:
            return UnrevokeAgent(key=f"u{key}", actor_did=actor, is_admin=False, did=AGENT)
        expires_ms = self.chance.choice((None, AT - 1, AT + 1))
        return revoke(key=key, actor_did=actor, expires_ms=expires_ms)

    def _start(self) -> Command:
        owner = self.chance.choice(list(self.epochs))
        self.epochs[owner] += 1
        return RegisterOwner(key=f"owner:{owner}", owner=owner, address="")

    def _claim(self) -> Command:
        one, other = self.chance.sample(list(self.epochs), 2)
        one_epoch = self.epochs[one] - (self.chance.random() < 0.3)
        return ClaimWorkflows(
            key=f"claim:{one}:{one_epoch}",
            from_owner=one,
            from_epoch=one_epoch,
            to_owner=other,
            to_epoch=self.epochs[other] - (self.chance.random() < 0.2),
        )

    def _publish(self) -> Command:
        owner = self.chance.choice(list(self.epochs))
        flow = Flow(
            self.epochs[owner] - (self.chance.random() < 0.2),
            hold=self.chance.choice((0, 5, 1_000_000, 50_000_000, 10**12)),
            owner=owner,
        )
        self.flows.append(flow)
        if self.chance.random() < 0.1:
            failed = WorkflowChanged(WorkflowStatus.FAILED, AT, error={"code": "BUDGET_EXCEEDED"})
            return flow.publish(records=(failed,), has_hold=False)
        return flow.publish(key=f"p{self.chance.randrange(60)}")

    def _advance(self) -> Command:
        if not self.flows:
            return self._publish()
        flow = self.chance.choice(self.flows)
        flow.epoch = self.epochs[flow.owner] - (self.chance.random() < 0.1)
        key = f"{flow.id}:{self.chance.randrange(12)}"
        if self.chance.random() < 0.3:
            end = WorkflowChanged(self.chance.choice(_ENDS), AT + 1)
            return flow.advance(end, key=key)
        line = f"n{self.chance.randrange(4)}"
        micro = self.chance.choice((1, 7, 19, 999_999, 10_000_000))
        step = flow.advance(*succeeded(line, micro), key=key)
        return replace(step, is_fresh=self.chance.random() < 0.3)

    def _stop_or_resume(self) -> Command:
        """Let an owner quarantine a workflow, or resume one that may be quarantined."""
        if not self.flows:
            return self._publish()
        flow = self.chance.choice(self.flows)
        owned = {"owner": flow.owner, "owner_epoch": self.epochs[flow.owner]}
        key = f"{flow.id}:q{self.chance.randrange(40)}"
        if self.chance.random() < 0.4:
            code = self.chance.choice((QuarantineCode.STEP_FAILED, QuarantineCode.NOT_RESTORABLE))
            return QuarantineWorkflow(key=key, workflow_id=flow.id, code=code, **owned)
        return ResumeWorkflow(key=f"r{key}", workflow_id=flow.id, actor_did=PAYER, **owned)


_ENDS = (WorkflowStatus.SUCCESS, WorkflowStatus.CANCELLED, WorkflowStatus.TIMEOUT)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
async def test_store_says_the_same_as_the_model_to_commands_nobody_should_send(
    seed: int, database: Database, auditor: Auditor
) -> None:
    model = LedgerModel()
    model.now_ms = partial(int, AT)
    first: list[Command] = [RegisterOwner(key="owner", owner=OWNER, address=""), deposit(10**8)]
    seen: set[tuple[OutcomeStatus, ErrorCode | None]] = set()
    async with writer(database) as store:
        assert_same(await store.commit(first, AT), model.commit(first), first)
        chaos = Chaos(seed, model.owners[OWNER])
        for _ in range(120):
            batch = [chaos.command() for _ in range(chaos.chance.choice((1, 1, 2, 5, 20)))]
            outcomes = await commit_all(store, batch, AT)
            assert_same(outcomes, model.commit(batch), batch)
            chaos.epochs.update(model.owners)
            seen |= {(outcome.status, outcome.error) for outcome in outcomes}
    assert_same_balances(database.superuser_url, model)
    for status in OutcomeStatus:
        assert any(one is status for one, _ in seen), f"no command was {status}"
    for code in (
        ErrorCode.ESCROW_RELEASED,
        ErrorCode.INSUFFICIENT_CREDITS,
        ErrorCode.KEY_REUSED,
        ErrorCode.FORBIDDEN,
        ErrorCode.CONFLICT,
    ):
        assert (OutcomeStatus.REJECTED, code) in seen, code


async def test_fenced_owner_gets_stale_even_for_a_key_that_its_successor_used(
    database: Database, auditor: Auditor
) -> None:
    """Goal: an old owner never takes its successor's commit for its own.

    Method: in one batch a repeat, which makes the store look keys up, and the fenced one.
    """
    flow = Flow(1)
    start = RegisterOwner(key="owner", owner=OWNER, address="")
    async with writer(database) as store:
        await store.commit([start, deposit(10**8), flow.publish()], AT)
        await store.commit([start], AT)
        step, old = flow.advance(key="step", epoch=2), flow.advance(key="step", epoch=1)
        first = [outcome.status for outcome in await store.commit([step, old], AT)]
        again = [outcome.status for outcome in await store.commit([step, old], AT)]
    assert first == [OutcomeStatus.APPLIED, OutcomeStatus.STALE]
    assert again == [OutcomeStatus.REPEATED, OutcomeStatus.STALE]
