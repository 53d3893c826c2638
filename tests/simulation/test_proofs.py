"""Proofs over whole workflows, exhaustive for a handful of shapes.

Fail at every node in turn; say everything twice; kill the owner at every single step it passes:
as it submits, before a commit, after one, before and after each outgoing call. After every run all
checks of `checks.py` hold; here stands what must be true besides.
"""

from __future__ import annotations

from typing import Any

import pytest

from actors.ports import DispatchOrder
from core.errors import NodeErrorCode
from core.workflow.events import Failure, Verdict
from core.workflow.transitions import NodeStatus, WorkflowStatus
from tests.simulation.shapes import CAPABILITIES, Shape, compiled
from tests.simulation.simulated_agents import LAST_WORDS, WORDS, Later
from tests.simulation.troubles import CALM
from tests.simulation.world import Script, World

DEAR = CAPABILITIES[1]


def _shape(
    parents: dict[str, list[str]],
    *,
    verified: tuple[str, ...] = (),
    budget: float | None = None,
) -> Shape:
    nodes: dict[str, Any] = {
        name: {
            "capabilityId": DEAR,
            "dependsOn": depends_on,
            "requiresVerification": name in verified,
            "maxRetries": 1,
        }
        for name, depends_on in parents.items()
    }
    settings = {} if budget is None else {"maxBudgetCredits": budget}
    return compiled({"nodes": nodes, "settings": settings})


CHAIN = {"a": [], "b": ["a"], "c": ["b"]}
FAN: dict[str, list[str]] = {"a": [], "b": ["a"], "c": ["a"], "d": ["a"], "e": ["b", "c", "d"]}
DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
SHAPES = {
    "one": _shape({"a": []}),
    "chain": _shape(CHAIN),
    "fan": _shape(FAN),
    "diamond": _shape(DIAMOND),
    "verified": _shape(CHAIN, verified=("a", "c")),
    # The dearest agent asks 1.04 credits, the dearest verifier 0.05: exactly what is reserved.
    "just enough": _shape(DIAMOND, verified=("d",), budget=4 * 1.04 + 0.05),
}
every_shape = pytest.mark.parametrize("name", SHAPES)


def run(name: str, script: Script, *, crash_point: int | None = None) -> World:
    """Run one workflow of this shape with agents that answer by the script."""
    world = World(0, troubles=CALM, shapes=[SHAPES[name]], script=script, crash_point=crash_point)
    return world.run()


def well(_: DispatchOrder) -> list[bool | Failure]:
    """Every agent delivers, every verifier approves."""
    return [True]


def status_of(world: World) -> WorkflowStatus:
    """Return how the one workflow ended."""
    (row,) = world.model.workflows.values()
    return WorkflowStatus(row["status"])


def node_statuses(world: World) -> dict[str, NodeStatus]:
    """Return how its nodes ended."""
    (nodes,) = world.model.nodes.values()
    return {name: NodeStatus(node["status"]) for name, node in nodes.items()}


def descendants(name: str, start: str) -> set[str]:
    """Return the nodes that cannot run once `start` has failed."""
    nodes = SHAPES[name].compiled.nodes
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for child in nodes[waiting.pop()].children:
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


@every_shape
def test_workflow_succeeds_when_nothing_goes_wrong(name: str) -> None:
    world = run(name, well)
    assert status_of(world) is WorkflowStatus.SUCCESS
    orders = sum(1 + node.requires_verification for node in SHAPES[name].compiled.nodes.values())
    assert world.checks.dispatches == orders


@every_shape
@pytest.mark.parametrize(
    "failure",
    [WORDS[0], LAST_WORDS[0], Failure(NodeErrorCode.AGENT_TIMEOUT, "no reply")],
    ids=["error", "last word", "timeout"],
)
def test_failure_at_every_node_in_turn_stops_what_depends_on_it(
    name: str, failure: Failure
) -> None:
    for broken in SHAPES[name].compiled.nodes:

        def script(order: DispatchOrder, broken: str = broken) -> list[bool | Failure]:
            return [failure if order.node == broken and not order.is_verification else True]

        world = run(name, script)
        assert status_of(world) is WorkflowStatus.FAILED
        ended = node_statuses(world)
        is_timeout = failure.code is NodeErrorCode.AGENT_TIMEOUT
        assert ended[broken] is (NodeStatus.TIMEOUT if is_timeout else NodeStatus.FAILED)
        for skipped in descendants(name, broken):
            assert ended[skipped] is NodeStatus.SKIPPED
        (row,) = world.model.workflows.values()
        assert row["error"]["node"] == broken
        tries = 1 + SHAPES[name].compiled.nodes[broken].max_retries
        if failure.verdict is Verdict.FINAL_FOR_AGENT:
            tries = 3  # each of three agents once
        (attempts,) = world.model.attempts.values()
        assert sum(row["node"] == broken for row in attempts) == tries


@every_shape
def test_failure_that_passes_costs_a_retry_and_nothing_else(name: str) -> None:
    for broken in SHAPES[name].compiled.nodes:

        def script(order: DispatchOrder, broken: str = broken) -> list[bool | Failure]:
            is_first = order.attempt == 1 and order.verify_attempt < 2
            return [WORDS[1] if order.node == broken and is_first else True]

        world = run(name, script)
        assert status_of(world) is WorkflowStatus.SUCCESS, broken


@pytest.mark.parametrize("name", ["verified", "just enough"])
@pytest.mark.parametrize("judgement", [False, WORDS[1]], ids=["rejects", "fails"])
def test_nothing_is_paid_to_the_agent_without_approval(
    name: str, judgement: bool | Failure
) -> None:
    world = run(name, lambda order: [judgement if order.is_verification else True])
    assert status_of(world) is WorkflowStatus.FAILED
    (escrow,) = world.model.escrows.values()
    verified = {n.name for n in SHAPES[name].compiled.nodes.values() if n.requires_verification}
    assert not verified & escrow.paid.keys()
    judged = [line for line in escrow.paid if "#verify" in line]
    assert bool(judged) == (judgement is False), "a verifier is paid for rejecting, not for failing"


@every_shape
def test_every_answer_said_twice_counts_once(name: str) -> None:
    for second in (True, WORDS[1], LAST_WORDS[0]):
        world = run(name, lambda order, second=second: [True, second])
        once = run(name, well)
        assert world.model.balances == once.model.balances
        assert world.checks.dispatches == once.checks.dispatches


@every_shape
def test_success_after_a_failure_was_heard_does_not_count(name: str) -> None:
    """The late answer of a failed attempt is dropped; the next attempt is what is paid."""
    world = run(name, lambda order: [WORDS[1], True] if order.attempt == 1 else [True])
    if any(node.requires_verification for node in SHAPES[name].compiled.nodes.values()):
        return  # the verifiers of an only attempt fail too; the checks of the run are enough
    assert status_of(world) is WorkflowStatus.SUCCESS
    assert all(node["attempt"] == 2 for nodes in world.model.nodes.values()
               for node in nodes.values())  # fmt: skip


@every_shape
def test_crash_at_every_step_loses_and_doubles_nothing(name: str) -> None:
    """Kill the owner at its n-th step, for every n there is.

    The dispatches that were open are repeated, and every node is paid once.
    """
    crashes = 0
    calm = run(name, well)
    for crash_point in range(1, 200):
        world = run(name, well, crash_point=crash_point)
        if len(world.points) < crash_point:
            break
        crashes += 1
        assert status_of(world) is WorkflowStatus.SUCCESS, world.points[crash_point - 1]
        assert world.checks.dispatches >= calm.checks.dispatches
        assert world.model.escrows.keys() == calm.model.escrows.keys()
        for workflow_id, escrow in world.model.escrows.items():
            assert escrow.paid.keys() == calm.model.escrows[workflow_id].paid.keys()
    assert crashes >= 4 * len(SHAPES[name].compiled.nodes), crashes


@pytest.mark.parametrize("after_ms", [0, 1_500, 4_000])
def test_crash_at_every_step_of_a_run_whose_agents_answer_later(after_ms: int) -> None:
    """What an agent hands in counts only for the inputs that it was asked with."""
    name = "chain"

    def script(order: DispatchOrder) -> list[bool | Failure | Later]:
        return [True if order.node == "a" else Later(True, after_ms, 1)]

    for crash_point in range(1, 200):
        world = run(name, script, crash_point=crash_point)
        assert status_of(world) is WorkflowStatus.SUCCESS, crash_point
        if len(world.points) < crash_point:
            break
    assert crash_point > 4 * len(SHAPES[name].compiled.nodes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["diamond", "verified"])
def test_crash_at_every_step_of_a_run_with_failures(name: str) -> None:
    """As above, while every first attempt fails and every first verifier rejects."""

    def script(order: DispatchOrder) -> list[bool | Failure]:
        if order.is_verification:
            return [order.attempt > 2 or order.verify_attempt > 1]
        return [WORDS[1] if order.attempt == 1 else True]

    for crash_point in range(1, 400):
        world = run(name, script, crash_point=crash_point)
        if len(world.points) < crash_point:
            break
        # How it ends depends on which attempts the crash took; that it ends well is checked.
    else:
        pytest.fail("the run has more steps than were tried")
