"""The simulation's ledger held to the real one: the same commands, the same outcomes and books.

Random sequences of what no healthy member would send; what whole simulated runs have sent is in
`test_ledger_model_runs.py`. Compared are every outcome, every balance, who holds which shard, and
the rows from which workflows are restored.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from core.errors import ErrorCode, QuarantineCode
from core.shards.lease_messages import MemberState
from core.shards.shard import SHARDS, shard_of
from core.workflow.events import WorkflowChanged
from core.workflow.transitions import WorkflowStatus
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.features.shards import ChangeMember, GiveShards, TakeShards
from ledger.features.trust import UnrevokeAgent
from ledger.features.unfinished import UnfinishedPages
from ledger.features.workflow_commands import QuarantineWorkflow, ResumeWorkflow
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.checking import Auditor, connect
from tests.ledger.making import (
    AGENT,
    AT,
    PAYER,
    Flow,
    ToldLives,
    deposit,
    give,
    join,
    open_store,
    revoke,
    succeeded,
    take,
)
from tests.simulation.ledger_model import LedgerModel
from tests.simulation.shard_model import ShardModel

# Both refuse a payment; which of them depends on what the writer has read so far.
_REFUSED_CODES = (QuarantineCode.ALREADY_SETTLED, QuarantineCode.STEP_REFUSED)
_REFUSED_PAYMENTS = (ErrorCode.ALREADY_SETTLED, ErrorCode.INTERNAL_ERROR)
# Where the model leaves something out: columns that nothing is restored from.
_IGNORED = {"spent_micro", "created_ms", "started_ms", "completed_ms", "status"}


def shown(outcome: Outcome, like: Outcome) -> tuple[Any, ...]:
    """Return what of an outcome is compared: the model leaves entry ids and the like out."""
    error = "a payment" if outcome.error in _REFUSED_PAYMENTS else outcome.error
    # The model counts changes of the map, the ledger names the audit entry of each.
    result = {name: outcome.result.get(name) for name in like.result if name != "mapVersion"}
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


def assert_same_shards(store: LedgerStore, model: LedgerModel) -> None:
    """What renewals are answered with is the same."""
    expected = model.shards.committed()
    assert store.cluster.members == expected.members
    assert store.cluster.shards == expected.shards
    assert store.cluster.replaced() == expected.replaced()


async def assert_same_rows(
    reader: LedgerReader, model: LedgerModel, shards: Collection[int] = range(SHARDS)
) -> None:
    """What a member would restore from is the same."""
    pages = UnfinishedPages(reader, shards)
    pages.workflows_max, pages.nodes_max, pages.bytes_max = 10_000, 10**6, 10**9
    real = {stored.id: stored for stored in (await pages.page(None))[0]}
    expected = {stored.id: stored for stored in model.unfinished(shards)}
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
async def writer(database: Database, lives: ToldLives | None = None) -> AsyncIterator[LedgerStore]:
    """Open the real ledger and close it."""
    store = await open_store(database.service_url, lives=lives)
    try:
        yield store
    finally:
        await store.close()


class Chaos:
    """Random commands, most of them wrong in some way."""

    def __init__(self, seed: int, shards: ShardModel, lives: ToldLives) -> None:
        self.chance = random.Random(seed)
        self._shards, self._lives = shards, lives
        self._joined = 1
        self.flows: list[Flow] = []
        self.sent: list[Command] = []

    def command(self) -> Command:
        """Return the next one."""
        if self.sent and self.chance.random() < 0.15:
            return self.chance.choice(self.sent)
        made = self.chance.choice(
            (self._deposit, self._join, self._change, self._take, self._give,
             self._publish, self._publish, self._trust,
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

    def _member(self) -> str:
        """Return a member, most often one that has not gone."""
        names = [*self._shards.members, *self._shards.members, "nobody", *self._shards.gone]
        return self.chance.choice(names)

    def _join(self) -> Command:
        """Let a member join, at one of few addresses, now and then under an id of before."""
        self._joined += self.chance.random() < 0.9
        address = f"address-{self.chance.randrange(3)}"
        command = join(f"member-{self._joined}", address=address)
        return replace(command, key=f"{command.key}:{self.chance.randrange(3)}")

    def _change(self) -> Command:
        if self.chance.random() < 0.3:
            # Who has fallen silent is heard of again, or another one falls silent.
            live = self._lives.ended
            live ^= {self.chance.choice([*self._shards.members, "nobody"])}
        state = self.chance.choice((MemberState.READY, MemberState.READY, *MemberState))
        return ChangeMember(
            key=f"c{self.chance.randrange(200)}",
            actor_did=PAYER,
            member=self._member(),
            state=state,
        )

    def _some(self) -> tuple[tuple[int, int], ...]:
        """Return some shards, with the epochs that they have, or had, or do not have yet."""
        count = self.chance.choice((1, 2, 9, 40, SHARDS))
        seen = [
            (shard, self._shards.holders[shard].epoch + self.chance.choice((0, 0, 0, 0, -1, 1)))
            for shard in self.chance.choices(range(SHARDS), k=count)
        ]
        if self.chance.random() < 0.05:
            seen[0] = (self.chance.choice((-1, SHARDS)), 0)
        return tuple(seen)

    def _take(self) -> Command:
        key = f"k{self.chance.randrange(300)}"
        return TakeShards(key=key, member=self._member(), shards=self._some())

    def _give(self) -> Command:
        key = f"g{self.chance.randrange(300)}"
        return GiveShards(key=key, member=self._member(), shards=self._some(), to=self._member())

    def _of_shard(self, flow: Flow) -> None:
        """Let a workflow's next command be its shard's holder's, or by mistake another's."""
        holder = self._shards.holders[shard_of(flow.id)]
        flow.member, flow.epoch = holder.member, holder.epoch - (self.chance.random() < 0.1)
        if self.chance.random() < 0.1:
            flow.member = self._member()

    def _publish(self) -> Command:
        flow = Flow(0, hold=self.chance.choice((0, 5, 1_000_000, 50_000_000, 10**12)))
        self._of_shard(flow)
        self.flows.append(flow)
        if self.chance.random() < 0.1:
            failed = WorkflowChanged(WorkflowStatus.FAILED, AT, error={"code": "BUDGET_EXCEEDED"})
            return flow.publish(records=(failed,), has_hold=False)
        return flow.publish(key=f"p{self.chance.randrange(60)}")

    def _advance(self) -> Command:
        if not self.flows:
            return self._publish()
        flow = self.chance.choice(self.flows)
        self._of_shard(flow)
        key = f"{flow.id}:{self.chance.randrange(12)}"
        if self.chance.random() < 0.3:
            end = WorkflowChanged(self.chance.choice(_ENDS), AT + 1)
            return flow.advance(end, key=key)
        line = f"n{self.chance.randrange(4)}"
        micro = self.chance.choice((1, 7, 19, 999_999, 10_000_000))
        step = flow.advance(*succeeded(line, micro), key=key)
        return replace(step, is_fresh=self.chance.random() < 0.3)

    def _stop_or_resume(self) -> Command:
        """Let a member quarantine a workflow, or resume one that may be quarantined."""
        if not self.flows:
            return self._publish()
        flow = self.chance.choice(self.flows)
        self._of_shard(flow)
        fence: dict[str, Any] = {"member": flow.member, "shard_epoch": flow.epoch}
        key = f"{flow.id}:q{self.chance.randrange(40)}"
        if self.chance.random() < 0.4:
            code = self.chance.choice((QuarantineCode.STEP_FAILED, QuarantineCode.NOT_RESTORABLE))
            return QuarantineWorkflow(key=key, workflow_id=flow.id, code=code, **fence)
        return ResumeWorkflow(key=f"r{key}", workflow_id=flow.id, actor_did=PAYER, **fence)


_ENDS = (WorkflowStatus.SUCCESS, WorkflowStatus.CANCELLED, WorkflowStatus.TIMEOUT)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
async def test_store_says_the_same_as_the_model_to_commands_nobody_should_send(
    seed: int, database: Database, auditor: Auditor
) -> None:
    model, lives = LedgerModel(), ToldLives()
    model.now_ms = partial(int, AT)
    model.shards.is_live = lives.is_live
    first: list[Command] = [join(), take(), deposit(10**8)]
    seen: set[tuple[OutcomeStatus, ErrorCode | None]] = set()
    moved: Counter[tuple[str, OutcomeStatus, ErrorCode | None]] = Counter()
    async with (
        writer(database, lives) as store,
        LedgerReader(database.service_url, pool_size=1) as reader,
    ):
        assert_same(await store.commit(first, AT), model.commit(first), first)
        chaos = Chaos(seed, model.shards, lives)
        for number in range(120):
            batch = [chaos.command() for _ in range(chaos.chance.choice((1, 1, 2, 5, 20)))]
            outcomes = await store.commit(batch, AT)
            assert_same(outcomes, model.commit(batch), batch)
            assert_same_shards(store, model)
            if number % 40 == 0:
                await assert_same_rows(reader, model, chaos.chance.sample(range(SHARDS), 100))
            seen |= {(outcome.status, outcome.error) for outcome in outcomes}
            moved.update(
                (type(command).__name__, outcome.status, outcome.error)
                for command, outcome in zip(batch, outcomes, strict=True)
            )
        await assert_same_rows(reader, model)
    assert_same_balances(database.superuser_url, model)
    for name in ("JoinCluster", "ChangeMember", "TakeShards", "GiveShards"):
        assert moved[name, OutcomeStatus.APPLIED, None], name
    for code in (ErrorCode.FORBIDDEN, ErrorCode.INVALID_REQUEST):
        assert moved["TakeShards", OutcomeStatus.REJECTED, code], code
    for name in ("ChangeMember", "GiveShards"):
        assert moved[name, OutcomeStatus.REJECTED, ErrorCode.CONFLICT], name
    assert model.shards.gone, "no member has gone"
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


async def test_fenced_member_gets_stale_even_for_a_key_that_its_successor_used(
    database: Database, auditor: Auditor
) -> None:
    """Goal: who has lost a shard never takes its successor's commit for its own.

    Method: in one batch a repeat, which makes the store look keys up, and the fenced one.
    """
    flow = Flow(1)
    async with writer(database) as store:
        await store.commit([join(), take(), deposit(10**8), flow.publish()], AT)
        await store.commit([join("member-2"), give("member-2")], AT)
        step = Flow(2, id=flow.id, member="member-2").advance(key="step")
        old = flow.advance(key="step")
        first = [outcome.status for outcome in await store.commit([step, old], AT)]
        again = [outcome.status for outcome in await store.commit([step, old], AT)]
    assert first == [OutcomeStatus.APPLIED, OutcomeStatus.STALE]
    assert again == [OutcomeStatus.REPEATED, OutcomeStatus.STALE]
