"""The simulation's ledger held to the real one: what whole simulated runs sent, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from ledger.commands import Command, Outcome
from ledger.reads.reader import LedgerReader
from tests.conftest import Database
from tests.ledger.checking import Auditor
from tests.ledger.making import AT, card, commit_all
from tests.simulation.ledger_model import LedgerModel
from tests.simulation.test_ledger_model import (
    assert_same,
    assert_same_balances,
    assert_same_market,
    assert_same_rows,
    writer,
)
from tests.simulation.test_simulation import market_of
from tests.simulation.world import World

pytestmark = pytest.mark.anyio


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
                await assert_same_rows(reader, replayed)
    assert_same_balances(database.superuser_url, replayed)
    assert_same_market(database.superuser_url, replayed)
    assert replayed.balances == world.model.balances
