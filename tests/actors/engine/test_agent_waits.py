"""Nodes that wait for an agent: who asks again, when, and how many at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection

from actors.engine.agent_waits import POLL_MS, POLLED_MAX, RETRIES_PER_TURN_MAX, TURN_MS, AgentWaits
from core.errors import NodeErrorCode
from core.workflow.actions import AwaitAgent
from core.workflow.events import AttemptFailed, Event, Failure, RetryDue
from tests.actors.engine.runner_bench import Bench, wid
from tests.simulation.shapes import CAPABILITIES, agent_row, agent_rows, compiled
from tests.simulation.skewed_clock import START_MS, VirtualClock

UNTIL_MS = START_MS + 60_000
AGENT = "did:x:agent"


class Waiting:
    """Waits whose nodes ask in vain but for those that `served` names."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.able: set[str] = set()
        self.served: Callable[[str], bool] = lambda _: False
        self.asked: list[tuple[int, str]] = []
        self.actions: dict[str, AwaitAgent] = {}
        self.on_changed: Callable[[str, Collection[str]], None] = lambda did, offered: None
        self.waits = AgentWaits(self, self.clock, self._receive)  # type: ignore[arg-type]

    def may_end_wait(self, did: str, capability_id: str, at_ms: int) -> bool:
        """As of `PeerDirectory`."""
        return did in self.able

    def add(self, node: str, capability_id: str) -> None:
        """Let a node wait; its name is its workflow's, too."""
        action = AwaitAgent(node, capability_id, UNTIL_MS)
        self.actions[node] = action
        self.waits.add(node, action)

    def _receive(self, workflow_id: str, event: Event) -> None:
        assert isinstance(event, RetryDue)
        self.asked.append((event.at_ms - START_MS, event.node))
        is_over = event.at_ms >= UNTIL_MS
        if not is_over and not self.served(event.node):
            self.waits.add(workflow_id, self.actions[event.node])


def test_who_comes_back_is_asked_for_at_once_a_few_in_a_turn() -> None:
    made = Waiting()
    for number in range(3 * RETRIES_PER_TURN_MAX):
        made.add(f"n{number}", "cap.a")
    made.add("other", "cap.b")
    made.served = lambda _: True
    made.on_changed(AGENT, ["cap.a", "cap.b"])
    made.clock.run_until(START_MS + 2 * TURN_MS)
    assert not made.asked, "it is not able"
    made.able.add(AGENT)
    made.on_changed(AGENT, ["cap.a", "cap.b"])
    made.clock.run_until(made.clock.now_ms())
    assert len(made.asked) == RETRIES_PER_TURN_MAX
    assert "other" in [node for _, node in made.asked[:2]], "capabilities take turns"
    made.clock.run_until(made.clock.now_ms() + 5 * TURN_MS)
    assert (len(made.asked), len(made.waits)) == (3 * RETRIES_PER_TURN_MAX + 1, 0)


def test_who_gets_nobody_asks_once_and_again_at_the_end() -> None:
    made = Waiting()
    made.able.add(AGENT)
    for number in range(3):
        made.add(f"n{number}", "cap.a")
    made.on_changed(AGENT, ["cap.a"])
    made.clock.run_until(START_MS + POLL_MS - 1)
    assert [node for _, node in made.asked] == ["n0", "n1", "n2"]
    made.clock.run()
    at_the_end = {node for at_ms, node in made.asked if at_ms == UNTIL_MS - START_MS}
    assert at_the_end == {"n0", "n1", "n2"}
    assert len(made.waits) == 0


def test_one_node_of_some_capabilities_asks_unasked() -> None:
    """However many wait: a hundred thousand cost as much as sixty-four."""
    made = Waiting()
    for number in range(3 * POLLED_MAX):
        made.add(f"n{number}", f"cap.{number}")
        made.add(f"m{number}", f"cap.{number}")
    for turn in (1, 2, 3):
        made.clock.run_until(START_MS + turn * POLL_MS)
        assert len(made.asked) == turn * POLLED_MAX
    assert {node for _, node in made.asked} == {f"n{number}" for number in range(3 * POLLED_MAX)}


def test_the_others_follow_one_that_has_found_an_agent_unasked() -> None:
    made = Waiting()
    for number in range(5):
        made.add(f"n{number}", "cap.a")
    made.served = lambda _: True
    made.clock.run_until(START_MS + POLL_MS + TURN_MS)
    assert len(made.asked) == 5


def test_a_node_that_is_taken_out_never_asks() -> None:
    made = Waiting()
    made.waits.add("w", AwaitAgent("n", "cap.a", UNTIL_MS)).cancel()
    made.clock.run()
    assert (made.asked, len(made.waits)) == ([], 0)


# -- in a runner -----------------------------------------------------------------------------------

# It has one agent.
LONELY = compiled({"nodes": {"a": {"capabilityId": CAPABILITIES[4]}}})


def test_a_runner_dispatches_a_waiting_node_when_its_agent_is_registered_again() -> None:
    bench = Bench()
    row = agent_rows()[0]
    left = {**row, "status": "inactive", "updated_ms": bench.clock.now_ms()}
    bench.directory.put([left], at_ms=bench.clock.now_ms())
    for name in ("w1", "w2"):
        bench.publish(LONELY, workflow_id=wid(name))
    bench.gate.commit()
    assert bench.model.escrows[wid("w1")].amount == 10_000, "the price of its last card"
    assert not bench.outbox.sent
    bench.directory.put([row], at_ms=bench.clock.now_ms())
    bench.run_until(bench.clock.now_ms())
    assert {order.workflow_id for order in bench.outbox.sent} == {wid("w1"), wid("w2")}


def test_a_runner_dispatches_a_waiting_node_to_an_agent_that_is_new() -> None:
    bench = Bench()
    left = {**agent_rows()[0], "status": "inactive", "updated_ms": bench.clock.now_ms()}
    bench.directory.put([left], at_ms=bench.clock.now_ms())
    bench.publish_and_commit(LONELY)
    bench.directory.put([agent_row("did:x:new", {CAPABILITIES[4]: 1})], at_ms=START_MS)
    bench.run_until(bench.clock.now_ms())
    assert [order.agent_did for order in bench.outbox.sent] == ["did:x:new"]


def test_nodes_wait_for_an_agent_that_declined_until_its_time_is_over() -> None:
    bench = Bench()
    retried = compiled({"nodes": {"a": {"capabilityId": CAPABILITIES[4], "maxRetries": 1}}})
    bench.publish_and_commit(retried, workflow_id=wid("w1"))
    (order,) = bench.outbox.sent
    full = Failure(
        NodeErrorCode.AGENT_ERROR,
        "HTTP 429",
        retry_after_ms=2_500,
        is_spared=True,
        is_declined=True,
    )
    now_ms = bench.clock.now_ms()
    bench.runner.receive(wid("w1"), AttemptFailed("a", 1, full, now_ms, now_ms))
    bench.gate.commit()
    bench.publish_and_commit(LONELY, workflow_id=wid("w2"))
    assert bench.outbox.sent == [order], "it is left out for every payer"
    bench.run_until(now_ms + 2_499)
    assert bench.outbox.sent == [order]
    bench.run_until(now_ms + 2_500)
    sent = {one.workflow_id for one in bench.outbox.sent[1:]}
    assert sent == {wid("w1"), wid("w2")}, "the retry is due, and the wait is over"
