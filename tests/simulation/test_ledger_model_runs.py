"""The simulation's ledger held to the real one: what whole simulated runs sent, batch by batch.

Leases are no part of a command: which members had lost theirs is recorded with each batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pytest

from ledger.commands import Command, Outcome
from ledger.features.shards import JoinCluster
from ledger.reads.reader import LedgerReader
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import AT, ToldLives, card
from tests.simulation.ledger_model import LedgerModel
from tests.simulation.test_ledger_model import (
    assert_same,
    assert_same_balances,
    assert_same_market,
    assert_same_rows,
    assert_same_shards,
    writer,
)
from tests.simulation.test_simulation import market_of
from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """A batch as a simulated ledger has committed it; `ended`: members without a lease then."""

    commands: list[Command]
    outcomes: list[Outcome]
    now_ms: int
    ended: set[str]


class RecordingModel(LedgerModel):
    """A model that remembers its batches."""

    def __init__(self, model: LedgerModel) -> None:
        super().__init__(model._on_applied)
        self.batches: list[RecordedBatch] = []

    def commit(self, commands: Sequence[Command]) -> list[Outcome]:
        """Commit and remember."""
        members = {
            *self.shards.members,
            *(f.member for f in commands if isinstance(f, JoinCluster)),
        }
        ended = {member for member in members if not self.shards.is_live(member)}
        outcomes = super().commit(commands)
        self.batches.append(RecordedBatch(list(commands), outcomes, self.now_ms(), ended))
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
    replayed, lives = LedgerModel(), ToldLives()
    replayed.shards.is_live = lives.is_live
    agents: list[Command] = [
        card(did, owner_did=row["owner_did"]) for did, row in world.rows.items()
    ]
    async with (
        writer(database, lives) as store,
        LedgerReader(database.service_url, pool_size=1) as reader,
    ):
        await store.commit(agents, AT)  # of whom the model knows nothing
        for number, batch in enumerate(world.recording.batches):
            lives.ended = batch.ended
            replayed.now_ms = partial(int, batch.now_ms)
            replayed.commit(batch.commands)
            real = await store.commit(batch.commands, batch.now_ms)
            assert_same(real, batch.outcomes, batch.commands)
            if number % 40 == 0:
                await assert_same_rows(reader, replayed)
            assert_same_shards(store, replayed)
    assert_same_balances(database.superuser_url, replayed)
    assert_same_market(database.superuser_url, replayed)
    assert replayed.balances == world.model.balances
