"""No loop turn of an owner lasts long, however much is published, restored or ends at once.

The loop charges every item (`costs.py`) and refuses a turn above 10 virtual ms in every world;
these worlds are crowded enough to have one. issue 8, rows 5 and 6, mechanism 3.
"""

from __future__ import annotations

from core.errors import NodeErrorCode
from core.workflow.events import Failure
from tests.simulation.garbage import few_collections
from tests.simulation.shapes import CAPABILITIES, Shape, compiled
from tests.simulation.skewed_clock import START_MS
from tests.simulation.troubles import CALM, Troubles
from tests.simulation.world import Crowd, World

BULK, LONG, UNFINISHED = 150, 100, 500
AWAY = Failure(NodeErrorCode.AGENT_UNAVAILABLE, "the connection was refused")
READY_MS_MAX = 5_000
# A machine so overloaded that answers are late for longer than `owner_silence_ms`, though not for
# `BUSY_MS_MAX`; the late answers in it.
SLOWNESS, LATE_MIN = 550, 5


def chain(length: int) -> Shape:
    """Return a chain of so many nodes, each tried once."""
    nodes = {
        f"n{i}": {
            "capabilityId": CAPABILITIES[1],
            "dependsOn": [f"n{i - 1}"] if i else [],
            "maxRetries": 0,
        }
        for i in range(length)
    }
    return compiled({"nodes": nodes, "settings": {}})


def test_bulk_of_long_chains_whose_agent_is_away_holds_no_loop() -> None:
    """Row 5: a thousand chains of 100 nodes at once; here fewer, enough for 80 ms in one turn."""
    crowd = Crowd(is_bulk=True)
    shapes = [chain(LONG)] * BULK
    with few_collections():
        world = World(5, troubles=CALM, shapes=shapes, script=lambda _: [AWAY], crowd=crowd).run()
    assert {str(row["status"]) for row in world.model.workflows.values()} == {"failed"}
    assert len(world.model.workflows) == BULK


def test_bulk_at_a_slow_ledger_holds_no_loop() -> None:
    """The same class: hundreds of outcomes come with one batch, and then hundreds of results."""
    crowd = Crowd(is_bulk=True)
    with few_collections():
        shapes, troubles = [chain(1)] * 3 * BULK, Troubles(slow=1.0)
        world = World(
            5, troubles=troubles, shapes=shapes, script=lambda _: [True], crowd=crowd
        ).run()
    assert {str(row["status"]) for row in world.model.workflows.values()} == {"success"}


def test_owner_with_many_unfinished_workflows_restores_them_in_slices() -> None:
    """Row 6: an owner of many is killed; its successor is neither silent nor late."""
    troubles = Troubles(later=1.0, watched=True)
    crowd = Crowd(spread_ms=3_000, crash_at_ms=4_000)
    with few_collections():
        world = World(6, troubles=troubles, shapes=[chain(3)] * UNFINISHED, crowd=crowd).run()
    (successor,) = [one for one in world.all_processes if one.began_ms > START_MS]
    assert successor.rows_needed > UNFINISHED // 3, "too few were unfinished"
    assert successor.ready_ms - successor.began_ms <= READY_MS_MAX
    assert world.timekeeping.killed == 0


def test_owner_that_is_busy_is_not_replaced() -> None:
    """Its answers are late for longer than one may be silent, but its work goes on."""
    troubles = Troubles(later=1.0, watched=True)
    crowd = Crowd(spread_ms=1_000, slowness=SLOWNESS)
    with few_collections():
        shapes = [chain(1)] * (UNFINISHED // 2)
        world = World(7, troubles=troubles, shapes=shapes, crowd=crowd).run()
    assert world.timekeeping.late >= LATE_MIN
    assert world.timekeeping.killed == 0
