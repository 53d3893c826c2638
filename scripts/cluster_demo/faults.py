"""What is done to the demonstration's cluster, and what must hold afterwards.

Each fault, in order: 1. chains are published through all APIs, and small workflows without pause;
2. the chains that the lost machine owns are looked up in the map of shards (without a lost machine
all chains count); 3. the fault is made, and ended after its time; 4. every accepted workflow must
succeed, each node is paid once, the books balance; 5. every machine must serve again. Printed: the
time from the fault to the first resumed dispatch and to the last workflow's next dispatch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scripts.books import CHECKS
from scripts.cluster_demo.demo import STEP_TIMEOUT_S, WAIT_S, Demo, Load
from scripts.cluster_demo.hosts import Host, HostError
from scripts.cluster_demo.load import ENDED
from scripts.cluster_demo.timeline import Timeline, workflows_in

OUTAGE_S = 20.0
POSTGRES_AWAY_S = 30.0
CHAINS, CHAIN_NODES, NODE_S = 24, 60, 0.8
UPGRADE_NODES = 200
_RELEASE = "~/callboard-next"
# Nodes of each chain that are done before the fault.
_WARM_NODES = 4
_LOOK_S = 0.2
# Not the shell that looks for it. The machine has one ledger actor, the writer or a standby.
_LEDGER = "pgrep -f '[r]ay::LedgerActor'"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        name: as the command line takes it.
        text: what is done, for people.
        strike: does it; the last sign of life is before its end.
        relieve: ends it; None: it needs no end.
        machine: whose API may be away; None: any.
        is_lost: others must do the machine's work meanwhile.
        lasts_s: from its strike to its relief.
        is_from_relief: work can go on only when the fault has ended.
        nodes: of each chain, of which each takes `NODE_S`.
        may_refuse: publishes may be refused meanwhile.
    """

    name: str
    text: str
    strike: Callable[[], object]
    relieve: Callable[[], object] | None = None
    machine: Host | None = None
    is_lost: bool = False
    lasts_s: float = 0.0
    is_from_relief: bool = False
    nodes: int = CHAIN_NODES
    may_refuse: bool = True

    @property
    def lost(self) -> Host | None:
        """Return the machine whose work others must do."""
        return self.machine if self.is_lost else None


class Faults:
    """The faults of a cluster that serves.

    Args:
        demo: the cluster.
        chain_nodes: of each chain that runs meanwhile.
    """

    def __init__(self, demo: Demo, chain_nodes: int = CHAIN_NODES) -> None:
        self._demo = demo
        self._chain_nodes = chain_nodes

    @staticmethod
    def names() -> list[str]:
        """Return the names of all faults, in the order in which they are made."""
        return [
            "link", "kill", "drain", "ledger-frozen", "ledger", "head", "freeze", "gcs",
            "raylet-frozen", "gcs-frozen", "postgres",
        ]  # fmt: skip

    def run(self, names: Sequence[str]) -> None:
        """Make these faults one after the other.

        Raises:
            HostError: something did not become as it should.
        """
        for name in names:
            self._run(self._fault(name))

    def _fault(self, name: str) -> Fault:
        demo = self._demo
        head, second, third = demo.machines
        ledgers = self._ledgers_machine()
        # A worker that does not have the ledger.
        worker = second if ledgers is not second else third
        match name:
            case "link":
                return Fault(
                    name, f"the link of {worker.name} is down for {OUTAGE_S:.0f} s",
                    lambda: worker.set_link(is_up=False), lambda: worker.set_link(is_up=True),
                    worker, is_lost=True, lasts_s=OUTAGE_S,
                )  # fmt: skip
            case "freeze":
                return Fault(
                    name, f"SIGSTOP of all processes of {worker.name} for {OUTAGE_S:.0f} s",
                    lambda: worker.signal_all("STOP"), lambda: worker.signal_all("CONT"),
                    worker, is_lost=True, lasts_s=OUTAGE_S,
                )  # fmt: skip
            case "postgres":
                return Fault(
                    name, f"Postgres is away for {POSTGRES_AWAY_S:.0f} s", demo.postgres.stop,
                    demo.postgres.start, lasts_s=POSTGRES_AWAY_S, is_from_relief=True,
                )  # fmt: skip
            case "drain":
                return Fault(
                    name, f"{worker.name} is drained, ended, and joins again",
                    lambda: self._drain(worker, 0.0), lambda: self._end_drained(worker), worker,
                )  # fmt: skip
            case "ledger-frozen":
                return Fault(
                    name, f"SIGSTOP of the ledger's process for {OUTAGE_S:.0f} s",
                    lambda: ledgers.run(f"kill -STOP $({_LEDGER})"),
                    # It may have been replaced meanwhile.
                    lambda: ledgers.run(f"kill -CONT $({_LEDGER}) || true"), lasts_s=OUTAGE_S,
                )  # fmt: skip
            case "raylet-frozen":
                return _signal(name, worker, "STOP", "raylet")
            case "gcs-frozen":
                return _signal(name, head, "STOP", "gcs_server")
            case "gcs":
                # The supervisor ends all of Ray with it, on this machine.
                return replace(_signal(name, head, "KILL", "gcs_server"), is_lost=True)
            case "kill":
                return self._kill_of(name, worker, "")
            case "ledger":
                return self._kill_of(name, ledgers, ", the ledger's machine")
            case "head":
                return self._kill_of(name, head, ", the head")
            case "upgrade":
                return Fault(
                    name, "an upgrade is rolled", self._make_release, self._upgrade,
                    nodes=UPGRADE_NODES, may_refuse=False,
                )  # fmt: skip
        raise HostError(f"no fault is named {name}")

    def _kill_of(self, name: str, machine: Host, what: str) -> Fault:
        text = f"kill -9 of everything on {machine.name}{what}, which then joins again"
        return Fault(
            name, text, lambda: machine.signal_all("KILL"), lambda: self._join(machine), machine,
            is_lost=True, nodes=self._chain_nodes,
        )  # fmt: skip

    def _join(self, machine: Host) -> None:
        head = self._demo.machines[0]
        place = "--as-head" if machine is head else f"--head {head.address}"
        join = f"callboard join {place} --detach --node-address {machine.address}"
        machine.run(f"source ~/.bashrc; {join}", timeout_s=STEP_TIMEOUT_S)

    def _drain(self, machine: Host, wait_s: float) -> None:
        """Drain a machine by the command line, and wait until it holds nothing.

        Raises:
            HostError: after that time it still holds something.
        """
        head = self._demo.machines[0]
        command = f"callboard drain {_node_id(machine)} --wait {wait_s:.0f}"
        said = head.run(f"source ~/.bashrc; {command} || true", timeout_s=STEP_TIMEOUT_S)
        if wait_s and "holds nothing" not in said:
            raise HostError(said)

    def _end_drained(self, machine: Host) -> None:
        """End a drained machine's part as docs/operations.md says, and let it join again."""
        self._drain(machine, WAIT_S)
        machine.run("~/callboard/.venv/bin/callboard down", timeout_s=STEP_TIMEOUT_S)
        self._join(machine)

    def _make_release(self) -> None:
        """Put a release beside the running one on every machine: the same code at another path."""
        for machine in self._demo.machines:
            machine.run(f"rm -rf {_RELEASE} && cp -al ~/callboard {_RELEASE}")

    def _upgrade(self) -> None:
        command = f"source ~/.bashrc; callboard upgrade --to {_RELEASE}"
        said = self._demo.machines[0].run(command, timeout_s=STEP_TIMEOUT_S)
        for line in said.splitlines():
            self._demo.say(f"  {line}")

    def _ledgers_machine(self) -> Host:
        """Return the machine of the session that holds the lock of the head."""
        found = self._demo.postgres.rows(
            "SELECT host(client_addr) FROM pg_stat_activity JOIN pg_locks USING (pid)"
            " WHERE application_name = 'callboard-ledger' AND locktype = 'advisory'"
            " AND mode = 'ExclusiveLock' AND granted"
        )
        for machine in self._demo.machines:
            if machine.address in found:
                return machine
        raise HostError(f"no machine has the ledger: {found}")

    # --- one fault --------------------------------------------------------------------------------

    def _run(self, fault: Fault) -> None:
        demo, ledgers = self._demo, self._ledgers_machine()
        demo.say(f"fault {fault.name}: {fault.text} (the ledger is on {ledgers.name})")
        with demo.load(workflows=CHAINS, nodes=fault.nodes, delay_s=NODE_S) as load:
            _wait(lambda: _is_warm(load.timeline()), load)
            timeline = load.timeline()
            held = self._held(fault.lost, timeline) if fault.lost else set(timeline.chains)
            restarts = {machine.name: _restarts(machine) for machine in demo.machines}
            fault.strike()
            struck_s = time.monotonic()
            held &= load.timeline().unfinished_at(struck_s, fault.nodes)
            relieved_s = self._relieve(fault, struck_s)
            load.wait(STEP_TIMEOUT_S)
            demo.say(f"  {next(line for line in load.output().splitlines() if ENDED in line)}")
            from_s = relieved_s if fault.is_from_relief else struck_s
            self._tell(fault, load.timeline(), held, from_s)
            self.check_books()
            if fault.lost and fault.lasts_s:
                # The cluster has given the machine up: Ray there ends, and joins anew.
                lost = fault.lost
                _wait(lambda: _restarts(lost) > restarts[lost.name], None)
        for machine in demo.machines:
            demo.wait_serving(machine)
        demo.say(f"  every machine serves {time.monotonic() - struck_s:.1f} s after the fault")

    def _relieve(self, fault: Fault, struck_s: float) -> float:
        """End a fault after its time; return when it had ended."""
        if fault.relieve is None:
            return struck_s
        time.sleep(max(0.0, struck_s + fault.lasts_s - time.monotonic()))
        fault.relieve()
        return time.monotonic()

    def _held(self, machine: Host, timeline: Timeline) -> set[str]:
        """Return the chains whose shards a machine holds."""
        rows = self._demo.postgres.rows(
            "SELECT s.id FROM shard s JOIN member m ON m.id = s.member"
            f" WHERE m.machine = '{_node_id(machine)}'"
        )
        return workflows_in({int(row) for row in rows}, timeline.chains)

    def _tell(self, fault: Fault, timeline: Timeline, held: set[str], from_s: float) -> None:
        resumed_s = timeline.resumed_s(held, from_s, fault.lost.address if fault.lost else "")
        never = held - set(resumed_s)
        if not held or never:
            raise HostError(f"{fault.name}: of {len(held)} workflows, {never} did not go on")
        self._demo.say(
            f"  first resumed dispatch {min(resumed_s.values()):.1f} s after the fault, the last of"
            f" {len(held)} workflows {max(resumed_s.values()):.1f} s"
        )
        pause_s = timeline.longest_pause_s(from_s) - NODE_S
        lost_url = self._demo.url(fault.machine) if fault.machine else ""
        begun, accepted, slowest_s = timeline.publishes_during(from_s, lost_url)
        self._demo.say(
            f"  longest pause of a chain: {pause_s:.1f} s; publishes through the other APIs:"
            f" {accepted} of {begun} accepted, the slowest in {slowest_s:.1f} s"
        )
        if not fault.may_refuse and accepted < begun:
            raise HostError(f"{fault.name}: {begun - accepted} publishes were refused")

    def check_books(self) -> None:
        """Check that each node was paid once and that all sums are right."""
        for sentence, query in CHECKS.items():
            if rows := self._demo.postgres.rows(query):
                raise HostError(f"{sentence}: {rows[:5]}")
        self._demo.say("  nodes paid twice: 0; the books balance")


def _is_warm(timeline: Timeline) -> bool:
    counts = timeline.calls_by_chain()
    is_complete = len(timeline.chains) == CHAINS
    return is_complete and all(counts[one] >= _WARM_NODES for one in timeline.chains)


def _wait(is_done: Callable[[], bool], load: Load | None) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_done():
        if time.monotonic() > deadline or (load is not None and load.process.poll() is not None):
            raise HostError(load.output() if load else f"not done in {WAIT_S:.0f} s")
        time.sleep(_LOOK_S)


def _node_id(machine: Host) -> str:
    """Return the id of a machine in Ray."""
    words = machine.run("tr '\\0' '\\n' < /proc/$(pgrep -x raylet | head -1)/cmdline")
    [found] = [w.partition("=")[2] for w in words.split() if w.startswith("--node_id=")]
    return found


def _signal(name: str, machine: Host, number: str, program: str) -> Fault:
    """Return the fault that is a signal to one program of a machine."""
    command = f"kill -{number} $(pgrep -x {program})"
    text = f"kill -{number} of the {program} of {machine.name}"
    return Fault(name, text, lambda: machine.run(command), machine=machine)


def _restarts(machine: Host) -> int:
    """Return how often the machine's supervisor has started Ray again."""
    log = machine.own_files / "logs" / "supervisor.log"
    return log.read_text(encoding="utf-8", errors="replace").count("Ray is back")
