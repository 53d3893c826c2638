"""Measures what permits of agents cost: `python -m bench.permit_cost`. Decision 0204.

Prints CPU microseconds of one process: of an order's way through the queues of its agent, for a
member that is alone and one of three, beside queues with a fixed limit; of a renewal's report; and
of the ledger's answer.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Final

from actors.dispatch.agent_queue import AgentQueues
from core.shards.held_permits import HeldPermits
from core.shards.permit_messages import CLAIMS_MAX
from core.shards.permit_table import PermitTable

ROUNDS, CALLS = 7, 20_000
AGENT: Final = "did:key:z6MkAgentOfABench00000"
LIMIT, AGENTS = 32, 100
MEMBERS: Final = ("m1", "m2", "m3")


class Loads:
    """Calls at some agents, one open and one waiting at each."""

    def __init__(self, agents: int) -> None:
        self._agents = [f"did:key:z6MkAgentOfABench{number:05}" for number in range(agents)]

    def agents(self) -> Iterable[str]:
        """Implement `AgentLoads`."""
        return self._agents

    def load(self, agent: str) -> tuple[int, int]:
        """Implement `AgentLoads`."""
        return 1, 1


def median_us(call: Callable[[], object], calls: int = CALLS) -> float:
    """Return CPU microseconds per call, of the median round."""
    spent_us = []
    for _ in range(ROUNDS):
        began_s = time.process_time()
        for _ in range(calls):
            call()
        spent_us.append((time.process_time() - began_s) * 1e6 / calls)
    return statistics.median(spent_us)


def order_us(agent: str, permits: HeldPermits | None, limit_of: Callable[[str], int]) -> float:
    """Return what an order costs that is put, opened and closed, with the notes of a dispatcher."""
    allowed = limit_of if permits is None else permits.allowed
    queues: AgentQueues[int] = AgentQueues(10_000, 10_000, allowed, lambda _: 1, 1, lambda *_: True)
    numbers = itertools.count()

    def once() -> None:
        order = next(numbers)
        if not queues.put(agent, "payer", order, 0):
            raise AssertionError("the agent has room")
        queues.close(order, 0)
        if permits is not None:
            permits.note_freed(agent)

    return median_us(once)


def shared_members(agents: int) -> tuple[PermitTable, dict[str, HeldPermits], Loads]:
    """Return three members that need all of these agents, and the table that has heard them."""
    table, loads = PermitTable(1), Loads(agents)
    table.follow(MEMBERS, set(MEMBERS))
    held = {name: HeldPermits(lambda _: LIMIT, lambda: None) for name in MEMBERS}
    for turn, name in itertools.product(range(5), MEMBERS):
        report = held[name].report(loads, turn * 1_000)
        held[name].hear(report, table.exchange(name, report, turn * 1_000))
    return table, held, loads


def quiet_report_us(agents: int) -> float:
    """Return what a report costs in which nothing is new, with all agents looked at."""
    _, held, loads = shared_members(agents)
    times_ms = itertools.count(10_000, 500)
    return median_us(lambda: held["m1"].report(loads, next(times_ms)), 200)


def exchange_us(agents: int) -> float:
    """Return what a report of a new need at all agents costs, with its answer."""
    table, held, loads = shared_members(agents)
    spent_us = []
    for round_number in range(ROUNDS):
        table.follow(MEMBERS, set(MEMBERS[1:]))  # the first member's claims are forgotten
        table.follow(MEMBERS, set(MEMBERS))
        now_ms = 10_000 * (round_number + 1)
        void = held["m1"].report(loads, now_ms)
        held["m1"].hear(void, table.exchange("m1", void, now_ms))
        began_s = time.process_time()
        table.exchange("m1", held["m1"].report(loads, now_ms), now_ms)
        spent_us.append((time.process_time() - began_s) * 1e6)
    return statistics.median(spent_us)


def main() -> None:
    """Print every figure."""

    def limit_of(agent: str) -> int:
        return LIMIT

    alone = HeldPermits(limit_of, lambda: None, is_shared=False)
    _, held, _ = shared_members(1)
    print(f"order, fixed limit              {order_us(AGENT, None, limit_of):8.2f} us")
    print(f"order, a member alone           {order_us(AGENT, alone, limit_of):8.2f} us")
    print(f"order, one of three members     {order_us(AGENT, held['m1'], limit_of):8.2f} us")
    print(f"report, a member alone          {median_us(lambda: alone.report(Loads(1), 0)):8.2f} us")
    for agents in (AGENTS, CLAIMS_MAX):
        print(f"report, nothing new, {agents:4} agents{quiet_report_us(agents):8.0f} us")
        print(f"report and answer, all {agents:4} new  {exchange_us(agents):8.0f} us")


if __name__ == "__main__":
    main()
