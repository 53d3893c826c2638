"""An owner that restores work although no heartbeat was stored while the service was away.

The real owner, the real writer, a real Postgres and a real agent in one loop. No Ray. Lost and
repeated messages are simulated: tests/simulation/test_simulation.py.
"""

from __future__ import annotations

import time

import pytest

from core.market.agent_liveness import HEARTBEAT_TTL_MS
from tests.faults.scene import AGENT, Scene, request

pytestmark = pytest.mark.slow


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
