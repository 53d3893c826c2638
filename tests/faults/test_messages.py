"""Messages between the processes lost and repeated; an owner that was replaced and does not know.

The real owner, the real writer, a real Postgres and a real agent in one loop; between owner and
ledger a wire that loses requests, loses answers to what was carried out, and repeats. No Ray.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from core.market.agent_liveness import HEARTBEAT_TTL_MS
from tests.faults.scene import AGENT, DEADLINE_S, Scene, request

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

WORKFLOWS = 30
CUTS = 8


async def test_lost_and_repeated_messages_to_the_ledger(scene: Scene) -> None:
    """Each publish is also repeated by its client, under the same key, as new ids."""
    owner = await scene.owner(request_lost=0.2, answer_lost=0.2, repeated=0.2)
    batches = [[request(number), request(number)] for number in range(WORKFLOWS)]
    answers = await asyncio.gather(*(scene.published(owner, batch) for batch in batches))
    for first, second in answers:
        assert first.workflow_id == second.workflow_id
    await scene.wait_ended()
    assert scene.counts() == {"success": WORKFLOWS}
    paid = scene.auditor.one("SELECT count(*) FROM entry WHERE kind = 'node_payment'")
    assert paid == 3 * WORKFLOWS
    assert scene.lost == []


async def test_unsure_owner_reads_again_until_postgres_answers(scene: Scene) -> None:
    """A publish whose answer was lost is known by its rows only, and reading them may fail too."""
    owner = await scene.owner(answer_lost=0.6)

    async def cut_readers() -> None:
        # Not for ever: on a busy machine no reader would be done before it is cut.
        cut = 0
        while cut < CUTS:
            cut += scene.auditor.one(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE"
                " application_name = 'callboard-reader' AND datname = current_database()"
            )
            await asyncio.sleep(0.01)

    cutting = asyncio.create_task(cut_readers())
    await asyncio.gather(*(scene.published(owner, [request(n)]) for n in range(WORKFLOWS)))
    cutting.cancel()
    await scene.wait_ended()
    assert scene.counts() == {"success": WORKFLOWS}


@pytest.mark.parametrize("moment", [0, 3])
async def test_owner_that_was_replaced_is_fenced_and_its_successor_ends_everything(
    moment: int, scene: Scene
) -> None:
    """It was frozen, its successor has restored all; then it goes on with replies and timers."""
    old = await scene.owner()
    await asyncio.gather(*(scene.published(old, [request(n)]) for n in range(WORKFLOWS)))
    await wait_payments(scene, moment * WORKFLOWS // 2)
    scene.gate.clear()  # what is at work now ends after the successor's start
    await scene.owner()  # a process that starts under the same name is another member
    scene.gate.set()
    await scene.wait_ended()
    assert scene.counts() == {"success": WORKFLOWS}
    async with asyncio.timeout(DEADLINE_S):
        while not scene.lost:  # its next renewal tells it
            await asyncio.sleep(0.02)
    assert all("is no member" in reason for reason in scene.lost)
    paid = scene.auditor.one("SELECT count(*) FROM entry WHERE kind = 'node_payment'")
    assert paid == 3 * WORKFLOWS


async def test_restored_work_finds_its_agent_although_none_was_heard_while_the_service_was_away(
    scene: Scene,
) -> None:
    """Nothing stores heartbeats then: a minute later each agent's last one is too old."""
    scene.gate.clear()
    old = await scene.owner()
    await scene.published(old, [request(0)])
    await old.close()
    long_ago_ms = time.time_ns() // 1_000_000 - 10 * HEARTBEAT_TTL_MS
    connection = scene.auditor.connection
    connection.execute("UPDATE agent SET updated_ms = %s", (long_ago_ms,))
    connection.execute(
        "INSERT INTO agent_live (did, status, heartbeat_ms, updated_ms)"
        " VALUES (%(did)s, 'healthy', %(at_ms)s, %(at_ms)s)",
        {"did": AGENT, "at_ms": long_ago_ms},
    )
    await scene.owner()
    scene.gate.set()
    await scene.wait_ended()
    assert scene.counts() == {"success": 1}


async def wait_payments(scene: Scene, count: int) -> None:
    """Return when so many nodes have been paid."""
    query = "SELECT count(*) FROM entry WHERE kind = 'node_payment'"
    async with asyncio.timeout(DEADLINE_S):
        while scene.auditor.one(query) < count:
            await asyncio.sleep(0.005)
