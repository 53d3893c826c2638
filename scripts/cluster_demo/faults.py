"""What is done to the demonstration's cluster, and what must come of it.

Each fault, in order: 1. chains are published through all APIs, and small workflows without pause;
2. what the machine drives that is to be lost is looked up in the map of shards; 3. the fault is
made, and ended after its time; 4. every accepted workflow must end, each node paid once, the books
balance; 5. every machine must serve again. Printed: the time from the last sign of life to the
first resumed dispatch of a workflow of the lost machine; where no machine is lost, the longest
pause of a chain. Issue 11 (Done when).
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scripts.books import CHECKS
from scripts.cluster_demo.chains import ENDED
from scripts.cluster_demo.demo import PYTHON, STEP_TIMEOUT_S, WAIT_S, Demo
from scripts.cluster_demo.hosts import Host, HostError
from scripts.cluster_demo.timeline import Timeline, read_timeline, workflows_in

OUTAGE_S = 20.0
POSTGRES_AWAY_S = 30.0
CHAINS, CHAIN_NODES, NODE_S = 24, 60, 0.8
UPGRADE_NODES = 200
_RELEASE = "~/callboard-next"
# Nodes of each chain that are done before the fault.
_WARM_NODES = 4
_LOOK_S = 0.2
_ASK_S = 0.5
# How much is shown of what each workflow of a lost machine became.
_SHOWN_MAX = 12


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


class Readiness:
    """Asks every machine's API again and again, and remembers when each came back.

    Args:
        demo: the cluster.
    """

    def __init__(self, demo: Demo) -> None:
        self._demo = demo
        self._lost_s: dict[str, float] = {}
        self._back_s: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Readiness:
        self._thread.start()
        return self

    def __exit__(self, *_failure: object) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._stop.wait(_ASK_S):
            for machine in self._demo.machines:
                is_ready, now_s = self._demo.serves(machine), time.monotonic()
                if not is_ready:
                    self._lost_s.setdefault(machine.name, now_s)
                    self._back_s.pop(machine.name, None)
                elif machine.name in self._lost_s:
                    self._back_s.setdefault(machine.name, now_s)

    def lines(self, from_s: float) -> list[str]:
        """Return what is said of each machine that has not answered meanwhile.

        Args:
            from_s: the moment from which times are counted.
        """
        return [
            f"the API of {name} did not answer from {self._lost_s[name] - from_s:.1f} s on, and"
            f" again at {back_s - from_s:.1f} s"
            for name, back_s in self._back_s.items()
        ]


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
            "link", "kill", "freeze", "gcs", "raylet-frozen", "gcs-frozen", "postgres", "disk",
            "ledger", "head",
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
        head, second, third = demo.machines[:3]
        ledgers = self._ledgers_machine()
        # A worker whose loss is not the ledger's too; the third's disk is a small one.
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
            case "disk":
                text = f"the disk of {third.name} is full for {OUTAGE_S:.0f} s"
                return Fault(name, text, third.fill_disk, third.free_disk, third, lasts_s=OUTAGE_S)
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
        relieve = self._start_head if machine is self._demo.machines[0] else None
        text = f"kill -9 of everything on {machine.name}{what}"
        return Fault(
            name, text, lambda: machine.signal_all("KILL"), relieve, machine, is_lost=True,
            nodes=self._chain_nodes,
        )  # fmt: skip

    def _start_head(self) -> None:
        head = self._demo.machines[0]
        join = f"callboard join --as-head --detach --node-address {head.address}"
        head.run(f"source ~/.bashrc; {join}", timeout_s=STEP_TIMEOUT_S)

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
        """Return the machine of the ledger's writer, as the head row tells: others may stand by."""
        [head] = self._demo.postgres.rows("SELECT address FROM head")
        for machine in self._demo.machines:
            if f" {machine.address}:" in head:
                return machine
        raise HostError(f"no machine has the ledger: {head}")

    # --- one fault --------------------------------------------------------------------------------

    def _run(self, fault: Fault) -> None:
        demo, ledgers = self._demo, self._ledgers_machine()
        demo.say(f"fault {fault.name}: {fault.text} (the ledger is on {ledgers.name})")
        file = demo.operator.home / "events.jsonl"
        file.unlink(missing_ok=True)
        words = [demo.operator.address, demo.key, "~/events.jsonl", *demo.urls]
        words += ["--workflows", str(CHAINS), "--nodes", str(fault.nodes), "--delay", str(NODE_S)]
        command = f"cd ~/checkout && {PYTHON} -m scripts.cluster_demo.chains {' '.join(words)}"
        log = demo.operator.folder / "chains.log"
        with log.open("wb") as output:
            load = subprocess.Popen(
                demo.operator.inside(command), stdin=subprocess.DEVNULL, stdout=output,
                stderr=output,
            )  # fmt: skip

        def seen() -> Timeline:
            if not file.exists():
                return Timeline()
            with file.open(encoding="utf-8") as lines:
                return read_timeline(lines)

        def tell_log() -> str:
            return log.read_text(encoding="utf-8", errors="replace")

        with Readiness(demo) as readiness:
            try:
                _wait(lambda: _is_warm(seen()), load, tell_log)
                held = self._held(fault.lost, seen()) if fault.lost else set[str]()
                restarts = {machine.name: _restarts(machine) for machine in demo.machines}
                fault.strike()
                struck_s = time.monotonic()
                held &= seen().unfinished_at(struck_s, fault.nodes)
                relieved_s = self._relieve(fault, struck_s)
                if load.wait(STEP_TIMEOUT_S) != 0:
                    raise HostError(f"{fault.name}: {tell_log()}")
            finally:
                load.kill()
                load.wait()
            demo.say(f"  {next(line for line in tell_log().splitlines() if ENDED in line)}")
            self._tell(fault, seen(), held, (struck_s, relieved_s))
            self._check_books()
            if fault.lost and fault.lasts_s:
                # The cluster has given the machine up: Ray there ends, and joins anew.
                lost = fault.lost
                _wait(lambda: _restarts(lost) > restarts[lost.name], None, lambda: "Ray is away")
            for machine in demo.machines:
                demo.wait_serving(machine)
        for line in readiness.lines(struck_s):
            demo.say(f"  {line}")

    def _relieve(self, fault: Fault, struck_s: float) -> float:
        """End a fault after its time; return when it had ended."""
        if fault.relieve is None:
            return struck_s
        time.sleep(max(0.0, struck_s + fault.lasts_s - time.monotonic()))
        fault.relieve()
        return time.monotonic()

    def _held(self, machine: Host, timeline: Timeline) -> set[str]:
        """Return the chains whose shards a machine holds."""
        words = machine.run("tr '\\0' '\\n' < /proc/$(pgrep -x raylet | head -1)/cmdline")
        [node_id] = [w.partition("=")[2] for w in words.split() if w.startswith("--node_id=")]
        rows = self._demo.postgres.rows(
            "SELECT s.id FROM shard s JOIN member m ON m.id = s.member"
            f" WHERE m.machine = '{node_id}'"
        )
        return workflows_in({int(row) for row in rows}, timeline.chains)

    def _tell(
        self, fault: Fault, timeline: Timeline, held: set[str], times_s: tuple[float, float]
    ) -> None:
        demo, (struck_s, relieved_s) = self._demo, times_s
        names = {machine.address: machine.name for machine in demo.machines}
        if fault.lost:
            resumed_s = timeline.resumed_s(held, struck_s, fault.lost.address)
            never = held - set(resumed_s)
            if not held or never:
                raise HostError(f"of {len(held)} workflows of the lost one, {never} did not go on")
            first, last = min(resumed_s.values()), max(resumed_s.values())
            demo.say(
                f"  first resumed dispatch {first:.1f} s after the last sign of life, the last of"
                f" {len(held)} workflows {last:.1f} s"
            )
            for workflow in sorted(held, key=lambda one: resumed_s[one])[:_SHOWN_MAX]:
                before, after = timeline.done_by(workflow, struck_s)
                demo.say(
                    f"    {workflow}: resumed after {resumed_s[workflow]:.1f} s; dispatches before:"
                    f" {_spread(before, names)}; after: {_spread(after, names)}"
                )
        elif fault.is_from_relief:
            first_s = timeline.first_after_s(relieved_s)
            demo.say(f"  first dispatch {first_s or -1:.1f} s after its end")
        pause_s = timeline.longest_pause_s(struck_s) - NODE_S
        demo.say(f"  longest pause of a chain: {pause_s:.1f} s")
        lost_url = demo.url(fault.machine) if fault.machine else ""
        begun, accepted, slowest_s = timeline.publishes_during(struck_s, lost_url)
        demo.say(
            f"  publishes through the other APIs: {accepted} of {begun} accepted, the slowest in"
            f" {slowest_s:.1f} s"
        )
        if not fault.may_refuse and accepted < begun:
            raise HostError(f"{fault.name}: {begun - accepted} publishes were refused")

    def _check_books(self) -> None:
        """Check that each node was paid once and that all sums are right."""
        for sentence, query in CHECKS.items():
            if rows := self._demo.postgres.rows(query):
                raise HostError(f"{sentence}: {rows[:5]}")
        self._demo.say("  nodes paid twice: 0; the books balance")


def _is_warm(timeline: Timeline) -> bool:
    counts = timeline.calls_by_chain()
    is_complete = len(timeline.chains) == CHAINS
    return is_complete and all(counts[one] >= _WARM_NODES for one in timeline.chains)


def _wait(
    is_done: Callable[[], bool], load: subprocess.Popen[bytes] | None, tell: Callable[[], str]
) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_done():
        if time.monotonic() > deadline or (load is not None and load.poll() is not None):
            raise HostError(tell())
        time.sleep(_LOOK_S)


def _signal(name: str, machine: Host, number: str, program: str) -> Fault:
    """Return the fault that is a signal to one program of a machine."""
    command = f"kill -{number} $(pgrep -x {program})"
    text = f"kill -{number} of the {program} of {machine.name}"
    return Fault(name, text, lambda: machine.run(command), machine=machine)


def _restarts(machine: Host) -> int:
    """Return how often the machine's supervisor has started Ray again."""
    log = machine.own_files / "logs" / "supervisor.log"
    return log.read_text(encoding="utf-8", errors="replace").count("Ray is back")


def _spread(counts: dict[str, int], names: dict[str, str]) -> str:
    shown = [f"{names.get(address, address)} {n}" for address, n in sorted(counts.items())]
    return ", ".join(shown) or "none"
