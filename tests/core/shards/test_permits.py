"""Permits of agents: their sum is never exceeded, and a member that needs one gets one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from core.shards.held_permits import IDLE_MS, SCAN_MS
from core.shards.leases import FIRST_LEASE_MS, LEASE_MS, STARVED_MS
from core.shards.permit_messages import CLAIMS_MAX, PermitAnswer, PermitClaim, PermitReport
from core.shards.permit_table import NEED_MS, TURN_MS, PermitTable
from tests.core.shards.permit_world import Node, Request, World, cluster, step

LIMITS = {"one": 1, "three": 3, "ten": 10}
AGENTS = st.sampled_from(sorted(LIMITS))


class Permits(RuleBasedStateMachine):
    """Members join, die, freeze and wake; ledgers are replaced; messages are late and lost."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(dict(LIMITS))
        self.world.join()

    def node(self, number: int) -> Node:
        """Return one of the members whose process runs."""
        running = [node for node in self.world.nodes.values() if node.is_running]
        return running[number % len(running)] if running else self.world.join()

    def request(self, number: int) -> Request | None:
        """Return one of the renewals under way, the newest for 0."""
        requests = self.world.requests
        return requests[-1 - number % len(requests)] if requests else None

    @precondition(lambda self: len(self.world.ledger.members) < 4)
    @rule(has_shards=st.booleans())
    def join(self, has_shards: bool) -> None:
        self.world.join(has_shards=has_shards)

    @precondition(lambda self: len(self.world.nodes) < 6)
    @rule(number=st.integers(0, 3))
    def bear(self, number: int) -> None:
        parent = self.node(number)
        if self.world.ledger.members.get(parent.name):
            self.world.bear(parent)

    @rule(number=st.integers(0, 3))
    def bury(self, number: int) -> None:
        children = [node for node in self.world.nodes.values() if node.parent is not None]
        if children:
            self.world.bury(children[number % len(children)])

    @rule(number=st.integers(0, 3), agent=AGENTS, count=st.integers(1, 12))
    def put(self, number: int, agent: str, count: int) -> None:
        self.node(number).put(agent, count)

    @rule(number=st.integers(0, 3), agent=AGENTS)
    def finish(self, number: int, agent: str) -> None:
        self.node(number).finish(agent)

    @rule(number=st.integers(0, 3))
    def send(self, number: int) -> None:
        self.world.send(self.node(number))

    @rule(number=st.integers(0, 5), by_former=st.booleans())
    def serve(self, number: int, by_former: bool) -> None:
        if (request := self.request(number)) is not None:
            self.world.serve(request, by_former=by_former)

    @rule(number=st.integers(0, 5))
    def arrive(self, number: int) -> None:
        if (request := self.request(number)) is not None:
            self.world.arrive(request)

    @rule(number=st.integers(0, 3), times=st.integers(1, 3))
    def exchange(self, number: int, times: int) -> None:
        node = self.node(number)
        for _ in range(times):
            if node.is_running:
                self.world.exchange(node)

    @rule(but=st.integers(0, 4), ms=st.sampled_from([500, 3_000, 6_000, 20_000]))
    def go_on(self, but: int, ms: int) -> None:
        """Let all members renew for a while, but perhaps one, which is frozen or cut off."""
        nodes = list(self.world.nodes.values())
        for _ in range(0, ms, 500):
            step(self.world, [node for n, node in enumerate(nodes) if n != but], 500)
            self.check()

    @rule(ms=st.sampled_from([50, 500, 1_500]))
    def pass_time(self, ms: int) -> None:
        self.world.pass_ms(ms)

    @rule(number=st.integers(0, 3))
    def kill(self, number: int) -> None:
        self.world.end(self.node(number))

    @rule()
    def replace_ledger(self) -> None:
        self.world.replace_ledger()

    @rule()
    def take(self) -> None:
        self.world.take()

    @invariant()
    def check(self) -> None:
        for agent, limit in LIMITS.items():
            used = {name: node.sent[agent] for name, node in self.world.nodes.items()}
            assert sum(used.values()) <= limit, (agent, used, self.world.ledger.table)

    def teardown(self) -> None:
        """Everything that waits is sent, when messages arrive again and calls end."""
        world = self.world
        for child in [node for node in world.nodes.values() if node.parent is not None]:
            if not child.is_running:
                world.bury(child)
            elif not child.parent.is_running:
                world.end(child)
        for _ in range(12):
            step(world, list(world.nodes.values()), 500)
            world.take()
        world.pass_ms(STARVED_MS)
        for _ in range(400):
            nodes = [node for node in world.nodes.values() if node.is_running]
            step(world, nodes, 100)
            world.take()
            self.check()
            for node in nodes:
                for agent in LIMITS:
                    node.finish(agent)
        left = {n: +one.waiting for n, one in world.nodes.items() if one.is_running}
        assert not any(left.values()), (left, world.ledger.table)


def test_lone_member_has_all_of_every_agent_and_reports_nothing() -> None:
    world, (node,) = cluster(1, a=3)
    node.put("a", 5)
    assert node.sent["a"] == 3
    assert world.send(node).report.claims == ()
    assert node.asked == 0


def test_wide_workflow_gets_all_of_an_agent_that_no_other_uses() -> None:
    world, nodes = cluster(3, a=100)
    nodes[0].put("a", 500)
    for _ in range(3):
        world.exchange(nodes[0])
    assert nodes[0].sent["a"] == 100


def test_first_order_costs_one_exchange_and_the_next_none() -> None:
    world, (node, _) = cluster(2, a=10)
    before = node.asked
    node.put("a")
    assert (node.asked, node.sent["a"]) == (before + 1, 0)
    world.exchange(node)
    assert node.sent["a"] == 1
    node.put("a")
    assert node.sent["a"] == 2, "it has got as much again"


def test_idle_member_lists_nothing() -> None:
    world, (node, _) = cluster(2, a=10)
    node.put("a")
    step(world, [node], SCAN_MS)
    step(world, [node], SCAN_MS)
    assert world.send(node).report.claims == ()


def test_needs_are_met_equally_and_a_small_one_in_full() -> None:
    world, nodes = cluster(3, a=10)
    nodes[0].put("a", 50)
    step(world, nodes)
    nodes[1].put("a", 50)
    nodes[2].put("a", 1)
    for _ in range(20):
        step(world, nodes)
        for node in nodes:
            if node.sent["a"] > node.permits.allowed("a"):
                node.finish("a")
    assert sorted(node.sent["a"] for node in nodes) == [1, 4, 5]


def test_unused_permits_are_called_back_when_another_needs_them() -> None:
    world, (first, second) = cluster(2, a=10)
    first.put("a", 10)
    world.exchange(first)
    for _ in range(9):
        first.finish("a")
    second.put("a", 9)
    for _ in range(6):
        step(world, [first, second])
    assert (first.sent["a"], second.sent["a"]) == (1, 9)


def test_permits_are_kept_while_they_are_used_and_given_back_when_they_are_not() -> None:
    world, (node, other) = cluster(2, a=10)
    for _ in range(2 * IDLE_MS // SCAN_MS):
        node.put("a")
        step(world, [node, other], SCAN_MS)
        node.finish("a")
    assert world.ledger.table.charged("a") == {node.name: 2}
    for _ in range(IDLE_MS // SCAN_MS + 2):
        step(world, [node, other], SCAN_MS)
    assert world.ledger.table.charged("a") == {}


@pytest.mark.parametrize(("members", "limit"), [(3, 1), (4, 2)])
def test_members_take_turns_at_an_agent_with_too_few_places(members: int, limit: int) -> None:
    world, nodes = cluster(members, a=limit)
    for node in nodes:
        node.put("a", 1_000)
    for _ in range(800):
        step(world, nodes)
        for node in nodes:
            while node.sent["a"] and world.now_ms % 100 == 0:
                node.finish("a")
                break
    began = [node.began["a"] for node in nodes]
    assert min(began) > 0.8 * max(began), began
    assert sum(began) > 0.7 * limit * 400, "most of the time the places are used"


def test_member_that_is_silent_has_no_turn() -> None:
    world, (first, second, third) = cluster(3, a=1)
    for node in (first, second, third):
        node.put("a", 1_000)
        world.exchange(node)
    for _ in range((NEED_MS + 2 * TURN_MS) // 50):
        first.finish("a")
        third.finish("a")
        step(world, [first, third])
    assert third.began["a"], "the second would be next, and never comes"


def test_answer_that_is_lost_stays_charged_until_the_next_report() -> None:
    world, (first, second) = cluster(2, a=4)
    first.put("a", 4)
    world.serve(world.send(first))
    second.put("a", 4)
    world.exchange(second)
    assert second.sent["a"] == 0
    world.exchange(first)
    assert first.sent["a"] == 2, "the second's need is known by now"


def test_late_report_changes_nothing() -> None:
    world, (first, second) = cluster(2, a=4)
    first.put("a")
    world.exchange(first)
    first.finish("a")
    for _ in range(IDLE_MS // SCAN_MS + 1):
        step(world, [second], SCAN_MS)
        late = world.send(first)
        world.serve(late)
        world.arrive(late)
    assert [claim.held for claim in late.report.claims] == [0]
    first.put("a", 4)
    world.exchange(first)
    world.serve(late)
    assert world.ledger.table.charged("a") == {first.name: 4}
    world.arrive(late)
    second.put("a", 4)
    world.exchange(second)
    assert (first.sent["a"], second.sent["a"]) == (4, 0)


def test_lost_member_is_charged_until_its_shards_are_taken() -> None:
    world, (first, second, third) = cluster(3, a=4)
    first.put("a", 4)
    world.exchange(first)
    world.end(first)
    second.put("a", 4)
    for _ in range((LEASE_MS + 500) // 500):
        step(world, [second, third], 500)
    assert (world.ledger.live(), second.sent["a"]) == ([second.name, third.name], 0)
    world.take()
    step(world, [second, third])
    assert second.sent["a"] == 4


def test_second_member_gets_nothing_before_the_first_has_said_what_it_uses() -> None:
    world, (first,) = cluster(1, a=4)
    second = world.join()
    second.put("a", 4)
    first.put("a", 3)
    for _ in range(3):
        step(world, [second])
    assert (first.sent["a"], second.sent["a"]) == (3, 0)
    first.put("a", 1)
    assert first.sent["a"] == 4, "it does not know yet"
    for _ in range(5):
        step(world, [first, second])
    assert second.sent["a"] == 0
    first.finish("a")
    step(world, [first, second])
    assert (first.sent["a"], second.sent["a"]) == (3, 1)


def test_last_member_has_the_whole_again() -> None:
    world, (first, second) = cluster(2, a=4)
    second.put("a", 2)
    first.put("a", 4)
    step(world, [first, second])
    world.end(second)
    for _ in range((LEASE_MS + 500) // 500):
        step(world, [first], 500)
        world.take()
    world.pass_ms(STARVED_MS)
    step(world, [first])
    world.take()
    step(world, [first])
    assert first.sent["a"] == 4
    assert world.send(first).report == PermitReport(
        serial=first.permits._serial, term=first.permits._term
    )
    for _ in range(4):
        first.finish("a")
    third = world.join()
    third.put("a", 4)
    for _ in range(3):
        step(world, [first, third])
    assert third.sent["a"] == 4, "what the first had before it was alone is forgotten"


@pytest.mark.parametrize("is_heard", [True, False])
def test_new_ledger_grants_nothing_before_it_has_heard_everybody(is_heard: bool) -> None:
    world, (first, second, third) = cluster(3, a=5)
    first.put("a", 2)
    world.exchange(first)
    third.put("a")
    world.exchange(third)
    world.pass_ms(SCAN_MS)
    world.exchange(first)  # nothing of it is new to the ledger before
    world.replace_ledger()
    second.put("a", 4)
    for _ in range(4):
        step(world, [second, third])
    assert (second.sent["a"], third.sent["a"], first.permits.allowed("a")) == (0, 1, 4)
    assert third.permits.allowed("a") == 1, "it goes on with what it holds"
    if is_heard:
        for _ in range(4):
            step(world, [first, second, third])
        assert (first.sent["a"], second.sent["a"]) == (2, 2)
        return
    for _ in range((FIRST_LEASE_MS + 500) // 500):
        step(world, [second, third], 500)
        assert second.sent["a"] == 0
    world.take()
    step(world, [second, third])
    assert second.sent["a"] == 4


def test_former_ledger_grants_nothing_to_whom_the_new_one_has_heard() -> None:
    world, (first, second) = cluster(2, a=4)
    world.replace_ledger()
    for _ in range(2):
        step(world, [first, second])
    first.put("a", 4)
    for _ in range(2):
        request = world.send(first)
        world.serve(request, by_former=True)
        world.arrive(request)
    second.put("a", 4)
    step(world, [second, first])
    step(world, [second, first])
    assert world.used("a") == 4


def test_member_without_shards_comes_back_to_void_permits() -> None:
    world, (first, second) = cluster(2, a=4)
    late = world.join(has_shards=False)
    for _ in range(3):
        step(world, [first, second, late])
    late.put("a", 4)
    world.exchange(late)
    late.finish("a")
    late.acknowledged_ms = None
    late.put("a", 1)  # open, and not sent: it is fenced
    assert (late.sent["a"], late.unsent["a"]) == (3, 1)
    for _ in range((LEASE_MS + 500) // 500):
        step(world, [first, second], 500)
    first.put("a", 4)
    for _ in range(2):
        step(world, [first, second])
    assert first.sent["a"] == 4
    for _ in range(5):
        step(world, [late])
    assert (late.sent["a"], late.unsent["a"], late.waiting["a"]) == (0, 0, 1)
    first.finish("a")
    for _ in range(3):
        step(world, [late, first])
    assert late.sent["a"] == 0, "its three old calls and three new ones fill the agent"
    for _ in range(3):
        late.finish("a")
    for _ in range(6):
        step(world, [late, first])
    assert late.began["a"] == 5


def test_places_held_without_permits_count_and_bring_none() -> None:
    """As those of accepted orders, which an owner takes with the rows that it restores."""
    world, (first, second) = cluster(2, a=4)
    first.put("a", 4)
    world.exchange(first)
    second.taken_over["a"] = 3
    second.put("a", 4)
    for _ in range(3):
        world.exchange(second)
    second.finish("a")
    second.finish("a")
    assert (first.sent["a"], second.sent["a"]) == (4, 0), "the first has heard nothing"
    first.finish("a")
    for _ in range(3):
        step(world, [first, second])
    assert (first.sent["a"], second.sent["a"]) == (3, 0)
    first.finish("a")
    for _ in range(3):
        step(world, [first, second])
    assert (first.sent["a"], second.sent["a"]) == (2, 1)


def test_places_held_without_permits_are_made_up_for_by_others() -> None:
    world, (first, second) = cluster(2, a=4)
    first.put("a", 100)
    world.exchange(first)
    second.taken_over["a"] = 3
    for _ in range(2 * SCAN_MS // 50):
        step(world, [first, second])
        first.finish("a")
    assert first.sent["a"] == 1


def test_lowered_limit_is_reached_as_calls_end_and_a_raised_one_is_used() -> None:
    world, nodes = cluster(2, a=8)
    for node in nodes:
        node.put("a", 200)
    for _ in range(30):
        step(world, nodes)
        for node in nodes:
            node.finish("a")
    assert world.used("a") == 8
    world.limits["a"] = 2
    for _ in range(12):
        step(world, nodes, 500)
        nodes[0].finish("a")
        nodes[1].finish("a")
        assert world.used("a") <= 8
    assert world.used("a") == 2
    world.limits["a"] = 6
    for _ in range(3):
        step(world, nodes, 500)
    assert [node.sent["a"] for node in nodes] == [3, 3]


def test_claims_beyond_one_report_follow_in_the_next() -> None:
    agents = {f"a{number}": 1 for number in range(2 * CLAIMS_MAX + 10)}
    world, (first, second) = cluster(2, **agents)
    for agent in agents:
        first.put(agent)
    assert len(world.send(first).report.claims) == CLAIMS_MAX
    for _ in range(4):
        world.exchange(first)
    assert first.sent == Counter(agents)
    world.replace_ledger()
    for agent in agents:
        second.put(agent)
    for _ in range(12):
        step(world, [first, second])
    assert all(world.used(agent) == 1 for agent in agents)


def test_report_with_too_many_claims_is_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.shards.permit_table.AGENTS_MAX", 3)
    table = PermitTable(1)
    table.follow(["m", "n"], {"m", "n"})
    term = table.exchange("m", PermitReport(serial=1), 0).term
    claims = tuple(PermitClaim(f"a{n}", need=1) for n in range(CLAIMS_MAX + 1))
    report = PermitReport(serial=2, term=term, is_shared=True, claims=claims)
    assert len(table.exchange("m", report, 0).grants) == 3


def test_answers_that_are_slower_than_renewals_are_heard() -> None:
    world, (first, _) = cluster(2, a=4)
    first.put("a", 4)
    slow = world.send(first)
    world.serve(slow)
    for _ in range(3):
        world.serve(world.send(first))
    world.arrive(slow)
    assert first.sent["a"] == 4


def test_second_answer_to_a_report_is_dropped() -> None:
    world, (first, second) = cluster(2, a=4)
    first.put("a", 2)
    slow, quick = world.send(first), world.send(first)
    world.serve(slow)
    second.put("a", 4)
    world.exchange(second)
    world.serve(quick)
    world.arrive(quick)
    assert first.permits.allowed("a") == 2, "the second's need was known by then"
    step(world, [first, second], SCAN_MS)
    step(world, [first, second])
    assert second.sent["a"] == 2
    world.arrive(slow)
    first.put("a", 4)
    assert (first.sent["a"], second.sent["a"]) == (2, 2)


def test_report_is_sent_until_it_is_answered() -> None:
    world, (first, _) = cluster(2, a=4)
    first.put("a", 2)
    lost = world.send(first).report
    first.put("a", 2)
    world.pass_ms(SCAN_MS)
    assert world.send(first).report == lost
    world.exchange(first)
    assert world.send(first).report.serial == lost.serial + 1


def test_report_that_comes_again_charges_nothing_less() -> None:
    world, (first, second) = cluster(2, a=4)
    first.put("a", 4)
    answered, again = world.send(first), world.send(first)
    world.serve(answered)
    second.put("a", 4)
    world.exchange(second)
    world.serve(again)
    world.exchange(second)
    world.arrive(answered)
    assert (first.sent["a"], second.sent["a"]) == (4, 0)


def test_report_that_comes_again_tells_nothing_of_a_member_that_was_alone_meanwhile() -> None:
    world, (first,) = cluster(1, a=4)
    second = world.join()
    world.exchange(first)  # it has heard of the second, and reports its claims next
    answered, again = world.send(first), world.send(first)
    assert (answered.report.is_shared, answered.report.is_complete) == (True, True)
    del world.ledger.members[second.name]
    world.serve(answered)
    world.arrive(answered)
    first.put("a", 4)
    assert first.sent["a"] == 4, "it is alone"
    third = world.join()
    third.put("a", 4)
    world.exchange(third)
    world.serve(again)
    for _ in range(3):
        world.exchange(third)
    assert third.sent["a"] == 0


@pytest.mark.parametrize("newer", [1, 2])
def test_end_of_permits_is_heard_in_whichever_answer_comes_first(newer: int) -> None:
    """It ends the fence as well: what is open and not sent would be sent."""
    world, (first, second) = cluster(2, a=4)
    late = world.join(has_shards=False)
    for _ in range(3):
        step(world, [first, second, late])
    late.put("a", 4)
    world.exchange(late)
    for _ in range(4):
        late.finish("a")
    late.acknowledged_ms = None
    late.put("a", 4)  # open, and not sent: it is fenced
    slow = world.send(late)
    for _ in range(newer):
        world.exchange(late)
    world.send(late)
    late.acknowledged_ms = None
    late.waiting["a"], late.sent["a"], late.unsent["a"] = 0, 0, 4
    for _ in range((LEASE_MS + 500) // 500):
        step(world, [first, second], 500)
    first.put("a", 4)
    for _ in range(2):
        step(world, [first, second])
    world.serve(slow)
    world.arrive(slow)
    assert (first.sent["a"], late.sent["a"], late.waiting["a"]) == (4, 0, 4)


def test_end_of_a_call_whose_permit_was_called_back_is_reported_at_once() -> None:
    world, (first, second) = cluster(2, a=4)
    first.put("a", 4)
    world.exchange(first)
    step(world, [first, second], SCAN_MS)
    second.put("a", 4)
    for _ in range(3):
        step(world, [first, second])
    before = first.asked
    first.finish("a")
    assert first.asked == before + 1
    step(world, [first, second])
    assert (first.sent["a"], second.sent["a"]) == (3, 1)


def test_lowered_limit_holds_at_once_where_it_is_known() -> None:
    world, (first, _) = cluster(2, a=4)
    first.put("a", 4)
    world.exchange(first)
    world.limits["a"] = 1
    assert first.permits.allowed("a") == 1


def test_orders_that_wait_are_sent_when_their_member_is_alone_again() -> None:
    node = World({"a": 4}).join()
    node.put("a", 2)
    node.hear(node.permits.report(node, 0), PermitAnswer(term=1), acknowledged_ms=1_000)
    assert node.sent["a"] == 2


# Last, because a failure is made small first, which takes minutes.
Permits.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPermits = pytest.mark.slow(Permits.TestCase)


def test_members_with_many_unmet_needs_are_granted_permits_by_a_new_ledger() -> None:
    agents = {f"a{number}": 2 for number in range(CLAIMS_MAX + 10)}
    world, (first, second) = cluster(2, **agents)
    world.replace_ledger()
    for agent in agents:
        first.put(agent)
    second.put("a0")
    for _ in range(20):
        step(world, [first, second])
    assert (first.sent, second.sent["a0"]) == (Counter(agents.keys()), 1)


def test_lone_member_with_calls_at_many_agents_goes_on_when_another_joins() -> None:
    agents = {f"a{number}": 2 for number in range(CLAIMS_MAX + 10)}
    world, (first,) = cluster(1, **agents)
    for agent in agents:
        first.put(agent, 4)
    second = world.join()
    for _ in range(20):
        step(world, [first, second])
    for agent in agents:
        first.finish(agent)
        first.finish(agent)
    for _ in range(20):
        step(world, [first, second])
    assert first.waiting.total() == 0
    assert first.sent == Counter(agents)
