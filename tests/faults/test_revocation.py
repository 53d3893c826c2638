"""An agent is revoked at the worst moment: its owner hears of it after it has sent its results.

The real owner, the real writer, a real Postgres and real agents in one loop. No Ray. Spec:
Revocation; money.md (Settlement); decision permissions-and-keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from core.workflow.events import NodePaid
from ledger.commands import Command, Outcome
from ledger.workflows.workflow_commands import AdvanceWorkflow
from tests.faults.scene import AGENT, Scene, Wire, agent, registration, request
from tests.ledger.making import revoke

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WORKFLOWS = 30
OTHER = "did:fault:other"


@dataclass
class RevokingWire(Wire):
    """Revokes the agent in the transaction of the first results that are sent from here."""

    is_done: bool = False

    async def submit(self, batch: list[Command]) -> Sequence[Outcome]:
        """Carry a batch to the ledger."""
        if self.is_done or not any(pays(command) for command in batch):
            return await super().submit(batch)
        self.is_done = True
        _, *outcomes = await self.commits.submit([revoke(AGENT), *batch])
        return outcomes


def pays(command: Command) -> bool:
    """Say whether a command pays for a node."""
    return isinstance(command, AdvanceWorkflow) and any(
        isinstance(record, NodePaid) for record in command.records
    )


async def test_what_was_on_its_way_is_refused_and_everything_ends_with_another_agent(
    scene: Scene,
) -> None:
    """Goal: the owner goes on; no agent is paid twice, the revoked agent not at all."""
    owner = await scene.owner(wire=RevokingWire(scene.commits))
    scene.gate.clear()  # the first results come when the other agent is known
    await asyncio.gather(*(scene.published(owner, [request(n)]) for n in range(WORKFLOWS)))
    async with agent(0.01) as url:
        await scene.commits.submit([registration(url, OTHER)])
        await owner.refresh()
        scene.gate.set()
        await scene.wait_ended()
    assert scene.counts() == {"success": WORKFLOWS}
    assert scene.lost == [], "the owner had to begin anew"
    refused = (
        "SELECT count(*) FROM event"
        " WHERE event_type = 'command.refused' AND payload ->> 'code' = 'FORBIDDEN'"
    )
    assert scene.auditor.one(refused) >= 1
    assert scene.auditor.one("SELECT count(*) FROM workflow WHERE is_halted") == 0
    paid = dict(
        scene.auditor.connection.execute(
            "SELECT a.owner_did, count(*) FROM entry e JOIN account a ON a.id = e.credit_account_id"
            " WHERE e.kind = 'node_payment' GROUP BY 1"
        ).fetchall()
    )
    assert paid == {OTHER: 3 * WORKFLOWS}


async def test_an_owner_that_starts_takes_the_work_of_those_revoked_meanwhile(
    scene: Scene,
) -> None:
    """Its predecessor has ended without a word, and the agent was revoked after that."""
    async with agent(3_600) as slow, agent(0.01) as quick:
        await scene.commits.submit([registration(slow)])
        first = await scene.owner()
        await scene.published(first, [request(number) for number in range(5)])
        await first.close()  # as its process ends: nothing is given to another, nothing heard
        await scene.commits.submit([revoke(AGENT), registration(quick, OTHER)])
        await scene.owner()
        await scene.wait_ended()
    assert scene.counts() == {"success": 5}, scene.errors()
