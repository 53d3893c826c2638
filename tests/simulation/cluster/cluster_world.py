"""A simulated cluster: members, ledgers, a database, a network, and what happens to them.

`ClusterWorld(seed).run()` starts four members, lets things go wrong for `TROUBLE_MS` as the seed
says, mends everything, and returns when all shards are driven as they should be, in bounded time.
Every promise is checked at every event (`cluster_checks.py`). Decision tests-and-benchmarks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

from core.shards.assignment import target_addresses
from core.shards.lease_messages import HeldShard
from core.shards.shard import id_in_shard, shard_of
from tests.simulation.cluster.cluster_checks import AgentCall, ClusterChecks
from tests.simulation.cluster.cluster_network import ClusterNetwork
from tests.simulation.cluster.cluster_troubles import ADDRESSES, OLD, ClusterTroubles
from tests.simulation.cluster.ledger_process import LedgerProcess
from tests.simulation.cluster.member_process import MemberProcess, settle
from tests.simulation.cluster.shard_work import AGENT_MS, ShardRuns
from tests.simulation.cluster.simulated_database import ClusterRows, SimulatedDatabase
from tests.simulation.skewed_clock import START_MS, MachineClock, VirtualClock
from tests.simulation.violation import Violation, require

SHARDS, WORKFLOWS_PER_SHARD = 8, 1
SLOTS = ("ledger", "ledger#1")
# The agents, which the workflows of one shard after the other call, and how many calls they take.
AGENT_LIMITS = {"narrow": 2, "wide": 8}
DATABASE = "database"
DATABASE_US, SLOW_US = (200, 2_000), (300_000, 3_000_000)
# The clocks of one world differ by this ratio at most: an expired lease and a fence are safe as
# long as it is below LEASE_MS / SELF_FENCE_MS. Real clocks differ by less than a thousandth.
RATE_MIN, RATE_MAX, RATE_RATIO_MAX = 0.8, 1.2, 1.19
OFFSET_US_MAX = 10**9
# How often it is looked who may send, beside at every move and every sending.
LOOK_MS = 50


class ClusterWorld:
    """One run.

    Args:
        seed: decides everything.
        kind: the one kind of trouble there is; empty: any of them, some together.
        rate_ratio_max: by how much its clocks differ at most.
    """

    def __init__(
        self, seed: int, kind: str = "", *, rate_ratio_max: float = RATE_RATIO_MAX
    ) -> None:
        self.seed = seed
        self.shards = SHARDS
        self.chance = random.Random(f"cluster {seed} {kind}")
        self.clock = VirtualClock()
        rate_min = self.chance.uniform(RATE_MIN, RATE_MAX / RATE_RATIO_MAX)
        self._rates = (rate_min, rate_min * rate_ratio_max)
        self._workflows = [
            [
                id_in_shard(f"00000000-0000-7000-8000-{number:012d}", shard)
                for number in range(WORKFLOWS_PER_SHARD)
            ]
            for shard in range(SHARDS)
        ]
        rows = ClusterRows([HeldShard("", 0)] * SHARDS)
        rows.steps = {one: 0 for several in self._workflows for one in several}
        rows.forms = dict.fromkeys(rows.steps, OLD)
        self.database = SimulatedDatabase(rows, lambda: self.clock.now_us)
        self.troubles = ClusterTroubles(self, kind)
        self.checks = ClusterChecks(
            self,
            keeps_shards=self.troubles.keeps_shards,
            sends_once=self.troubles.sends_once,
            is_upgrade=kind == "upgrade",
        )
        self.network = ClusterNetwork(self.clock, self.chance)
        # By agent, its calls that it has not answered.
        self.at_agents: dict[str, set[AgentCall]] = {agent: set() for agent in AGENT_LIMITS}
        self._started = 0
        self.ledgers: list[LedgerProcess] = []
        self.processes: list[MemberProcess] = []
        self.living: dict[str, MemberProcess] = {}
        self.handed_over = 0
        self.ledger = self.start_ledger()
        if self.troubles.has_standby:
            self.start_ledger(SLOTS[1])
        for address in ADDRESSES:
            self.clock.call_in(self.chance.randint(0, 1_000), self.start_member, address)

    def __repr__(self) -> str:
        return f"<ClusterWorld seed={self.seed} {self.troubles!r} {self.clock!r}>"

    def run(self) -> ClusterWorld:
        """Run to the end, or raise `Violation`."""
        try:
            self._run()
        except Violation as violation:
            command = f"--seed {self.seed}"
            raise Violation(f"{violation} ({self!r}; replay with {command})") from violation
        finally:
            for process in (*self.processes, *self.ledgers):
                process.loop.die()
                process.loop.discard_tasks()
        return self

    def _look(self) -> None:
        self.checks.poll()
        self.clock.call_in(LOOK_MS, self._look)

    def _run(self) -> None:
        self.troubles.begin()
        self._look()
        self.clock.run_until(START_MS + self.troubles.ends_ms)
        self.troubles.end()
        began_ms = self.clock.now_ms()
        steps = dict(self.checks.steps)

        def is_over() -> bool:
            is_quiet = self.clock.now_us >= self.network.newest_late_us
            has_gone_on = all(
                self.checks.steps.get(one, 0) > steps.get(one, 0) or one in self.checks.set_aside
                for one in self.database.rows.steps
            )
            return is_quiet and has_gone_on and self.checks.is_settled()

        late_ms = max(0, self.network.newest_late_us // 1_000 - began_ms)
        bound_ms = late_ms + self.troubles.bound_ms
        self.clock.run_until(began_ms + bound_ms, while_not=is_over)
        self.took_ms = self.clock.now_ms() - began_ms
        require(is_over(), "I3: after", bound_ms, "ms:", self.checks.unsettled(), self.living)

    # -- processes ---------------------------------------------------------------------------------

    def new_clock(self) -> MachineClock:
        """Return the clock of a machine."""
        rate = self.chance.uniform(*self._rates)
        return MachineClock(self.clock, rate, self.chance.randint(0, OFFSET_US_MAX))

    def start_ledger(self, slot: str = SLOTS[0]) -> LedgerProcess:
        """Start a ledger's process, which waits while another one has the lock."""
        self._started += 1
        ledger = LedgerProcess(self, f"ledger-{self._started}", slot)
        self.ledgers.append(ledger)
        return ledger

    def ledger_opened(self, ledger: LedgerProcess) -> None:
        """Hear that a ledger has become the head."""
        self.ledger = ledger

    def any_ledger(self) -> LedgerProcess:
        """Return the newest head or another one that answers: whichever a member finds."""
        others = (one for one in self.ledgers if one.is_well and one is not self.standby)
        return self.chance.choice([self.ledger, *others])

    @property
    def standby(self) -> LedgerProcess | None:
        """Return a process that waits for the lock, if there is one."""
        for one in self.ledgers:
            if one is not self.ledger and one.loop.is_alive and one.is_standby:
                return one
        return None

    def start_member(self, address: str) -> None:
        """Start a member's process at an address where none lives."""
        if any(one.address == address for one in self.living.values()):
            return
        self._started += 1
        version = self.troubles.version_at(address)
        process = MemberProcess(self, address, self._started, version)
        self.processes.append(process)
        self.living[process.member] = process

    def member_ended(self, process: MemberProcess) -> None:
        """Hear that a member's process has ended."""
        self.living.pop(process.member, None)
        self.troubles.member_ended(process)

    def ledger_ended(self, ledger: LedgerProcess) -> None:
        """Hear that a ledger's process has ended."""
        if ledger is self.ledger:
            self.troubles.ledger_ended()
        elif self.troubles.has_standby:
            self.troubles.standby_ended(ledger)

    # -- what processes ask ------------------------------------------------------------------------

    def targets(self, addresses: Iterable[str]) -> tuple[str, ...]:
        """Return by shard the address that should hold it."""
        return target_addresses(addresses, self.shards)

    def workflows_of(self, shard: int) -> list[str]:
        """Return the ids of a shard's workflows."""
        return self._workflows[shard]

    def agent_of(self, workflow_id: str) -> str:
        """Return the agent that all attempts of a workflow go to."""
        agents = tuple(AGENT_LIMITS)
        return agents[shard_of(workflow_id) % len(agents)]

    def limit_of(self, agent: str) -> int:
        """Return how many calls an agent takes at once."""
        return AGENT_LIMITS[agent]

    def send(
        self, process: MemberProcess, epoch: int, workflow_id: str, step: int, place: ShardRuns
    ) -> None:
        """Send an attempt to its agent, whose reply comes back to the process that sends.

        Args:
            place: in whose share.
        """
        agent, shares = self.agent_of(workflow_id), place.shares
        call = AgentCall(process, workflow_id, step, place, (shares.owners, shares._ready))
        self.at_agents[agent].add(call)
        place.at_agents[agent] += 1
        self.checks.sent(call, epoch)
        self.clock.call_in(self.chance.randint(*AGENT_MS), self._reply, call)

    def _reply(self, call: AgentCall) -> None:
        process, workflow_id, step, place, _ = call
        agent = self.agent_of(workflow_id)
        self.at_agents[agent].discard(call)
        place.at_agents[agent] -= 1
        _call(process, process.work.take_reply, workflow_id, step)
        for other in self.living.values():
            _call(other, other.work.notify)

    async def read_step(self, process: MemberProcess, workflow_id: str) -> tuple[int, int]:
        """Return a workflow's open attempt, and the version its rows need, as committed."""
        while True:
            await asyncio.sleep(self.chance.randint(*DATABASE_US) / 1_000_000)
            if not self.troubles.is_database_away:
                rows = self.database.rows
                return rows.steps[workflow_id], rows.forms[workflow_id]

    def ask_database(
        self, ledger: LedgerProcess, statement: Callable[[], Any], reply: asyncio.Future[Any]
    ) -> None:
        """Execute a ledger's statement after a while, and answer; or lose one of both."""
        delay_us = self.chance.randint(*DATABASE_US)
        if self.chance.random() < self.troubles.slow:
            delay_us = self.chance.randint(*SLOW_US)
        at_us = self.clock.now_us + delay_us
        self.clock.call_at_us(at_us, self._execute, ledger, statement, reply)

    def is_cut_off(self, ledger: LedgerProcess) -> bool:
        """Return whether a ledger does not reach the database."""
        is_cut = frozenset((ledger.name, DATABASE)) in self.network.cut
        return self.troubles.is_database_away or is_cut

    def _execute(
        self, ledger: LedgerProcess, statement: Callable[[], Any], reply: asyncio.Future[Any]
    ) -> None:
        if self.is_cut_off(ledger):
            _call(ledger, settle, reply, ConnectionError("the database is away"))
            return
        result: Any
        try:
            result = statement()
        except Exception as refusal:  # to be raised where it was asked for
            result = refusal
        if self.chance.random() < self.troubles.answer_lost:
            result = ConnectionError("the answer is lost")
        delay_us = self.chance.randint(*DATABASE_US)
        if self.chance.random() < self.troubles.slow:
            delay_us = self.chance.randint(*SLOW_US)
        self.clock.call_at_us(self.clock.now_us + delay_us, _call, ledger, settle, reply, result)


def _call(
    process: MemberProcess | LedgerProcess, call: Callable[..., Any], *arguments: Any
) -> None:
    if process.loop.is_alive:
        process.loop.call_soon(call, *arguments)
