"""`make cluster-demo`: a cluster on hosts made of namespaces, started by the real `ray up`.

1. Hosts: an operator, Postgres, three machines, clean but for Python and sshd.
2. `ray up cluster.yaml` on the operator's host, with addresses and secrets filled in.
3. The demonstration's workflow through the API of each machine; `serve status`.
4. A graph of 1,000 nodes: from which machines its dispatches come.
5. A machine is cut off while workflows run: the others finish them; it comes back.
6. Every process of a machine is killed: the head lets it join again.
7. Ray's GCS on the head is killed: the other machines answer meanwhile.
8. A fourth machine joins.
9. Every process of the head is killed, and one documented command brings it back.
10. `ray down`: what is left on each machine. Then the hosts are removed.

Prints what it does with its times; exit status 1 at the first thing that is not as it should be.
Where such hosts cannot be made it prints SKIPPED with the reason and ends with 77.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import yaml

from scripts.cluster_demo.hosts import UID, USER, Host, HostError, Network, why_not
from scripts.cluster_demo.postgres import Server, start_postgres

SKIPPED = 77
ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / ".cluster-demo"
PYTHON = ROOT / ".venv" / "bin" / "python"
RAY = ROOT / ".venv" / "bin" / "ray"
UP_TIMEOUT_S = 1_500.0
STEP_TIMEOUT_S = 600.0
WAIT_S = 300.0
API_PORT = 8_000
# Of a host at rest: its sshd, and the shell that lists the processes.
_OWN_PROGRAMS = ("sshd", "ps", "bash", "grep", "postgres", "sh")
_PAID = (
    "SELECT count(*) - count(DISTINCT (workflow_id, node_id)) FROM callboard.entry"
    " WHERE kind = 'node_payment'"
)
_OPEN = "SELECT count(*) FROM callboard.workflow WHERE completed_ms IS NULL"


class Demo:
    """One run: the hosts, and what is done with them.

    Args:
        network: in which the hosts are.
        wheels: the folder from which the machines install packages.
    """

    def __init__(self, network: Network, wheels: Path) -> None:
        self._began = time.monotonic()
        self._network = network
        self._wheels = wheels
        self.operator = network.add_host("operator")
        network.give_key(self.operator)
        self.postgres: Server = start_postgres(network)
        self.machines = [self._add_machine(name) for name in ("one", "two", "three")]
        self._key = ""

    def say(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)

    @property
    def urls(self) -> list[str]:
        return [f"http://{machine.address}:{API_PORT}" for machine in self.machines]

    def up(self) -> None:
        """Fill in cluster.yaml and the secrets, and run `ray up` (2)."""
        self._fill_in()
        self.say(f"ray up on {self.operator.name}")
        self._follow(f"cd ~/checkout && {RAY} up -y cluster.yaml", UP_TIMEOUT_S, " serve")
        key = self.machines[0].home / ".local/share/callboard/default/admin.key"
        self._key = key.read_text(encoding="ascii").strip()
        state = self.machines[0].run("source ~/.bashrc; serve status", timeout_s=STEP_TIMEOUT_S)
        proxies = state.count("HEALTHY") - state.count("status: HEALTHY")
        self.say(f"serve status: {proxies} proxies healthy, application {_line(state, 'status:')}")

    def run_article(self) -> None:
        """Run the demonstration's workflow through every API (3)."""
        self.say("the demonstration's workflow through each machine's API")
        self._clients("article", self.urls)

    def run_wide(self, nodes: int) -> None:
        """Run one wide graph and print where its dispatches came from (4)."""
        self.say(f"a graph of {nodes} nodes")
        self._clients("wide", self.urls[:1], "--nodes", str(nodes))

    def cut_off(self, machine: Host) -> None:
        """Cut a machine off while workflows run through all APIs (5)."""
        self.say(f"30 workflows of 40 nodes through all APIs; {machine.name} is cut off meanwhile")
        cut = False

        def pull(line: str) -> None:
            nonlocal cut
            if not cut and line.endswith("nodes done"):
                cut = True
                machine.set_link(is_up=False)
                self.say(f"the link of {machine.name} is down after {line}")

        options = ("--workflows", "30", "--nodes", "40", "--delay", "1.0")
        self._clients("wide", self.urls, *options, on_line=pull)
        self.say(f"unfinished workflows: {self.postgres.count(_OPEN)}")
        began, restarts = time.monotonic(), _restarts(machine)
        machine.set_link(is_up=True)
        # The cluster has given the machine up: Ray there ends, and joins anew.
        while _restarts(machine) == restarts and time.monotonic() - began < WAIT_S:
            time.sleep(0.5)
        self._wait_serving(machine, f"{machine.name} serves again after its link is back", began)
        self._check_money()

    def kill_all(self, machine: Host) -> None:
        """Kill every process of the service on a machine and wait until it is back (6)."""
        began = time.monotonic()
        machine.kill_all()
        self._wait_serving(machine, f"{machine.name} serves again after kill -9 of all", began)

    def kill_gcs(self) -> None:
        """Kill the GCS on the head; the others answer meanwhile (7)."""
        self.machines[0].run("kill -9 $(pgrep -x gcs_server)")
        self._wait_head("kill -9 of its GCS", time.monotonic())
        self.run_wide(200)

    def kill_head(self) -> None:
        """Kill everything on the head and start it again as docs/operations.md says (9)."""
        head = self.machines[0]
        began = time.monotonic()
        head.kill_all()
        join = "callboard join --as-head --detach --node-address"
        with subprocess.Popen(
            head.inside(f"source ~/.bashrc; {join} {head.address}"), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as joining:  # fmt: skip
            self._wait_head("kill -9 of all on it, and one command", began)
            status = joining.wait(STEP_TIMEOUT_S)
        if status != 0:
            raise HostError(f"{head.name}: {join}: exit status {status}")
        for machine in self.machines:
            self._wait_serving(machine, f"{machine.name} serves", began)
        self.run_wide(200)
        self._check_money()

    def _wait_head(self, after: str, began: float) -> None:
        """Wait until the head serves; count how the others answer meanwhile."""
        head, *others = self.machines
        asked = answered = 0
        while not self._serves(head) or time.monotonic() - began < 3.0:
            for machine in others:
                asked += 1
                answered += self._serves(machine)
            if time.monotonic() - began > WAIT_S:
                raise HostError(f"the head does not serve {WAIT_S:.0f} s after {after}")
        took_s = time.monotonic() - began
        self.say(
            f"the head serves again {took_s:.1f} s after {after}; meanwhile the others"
            f" answered {answered} of {asked} requests"
        )

    def add_fourth(self) -> None:
        """Let a machine join by hand, as docs/operations.md says (8)."""
        began = time.monotonic()
        machine = self._add_machine("four")
        shell = f"ssh -i ~/.ssh/{USER} -o StrictHostKeyChecking=no -o LogLevel=ERROR"
        target = f"{USER}@{machine.address}"
        config = yaml.safe_load((self.operator.home / "checkout/cluster.yaml").read_text())
        for path, source in config["file_mounts"].items():
            there = path.removeprefix("~/")
            end = "/" if (ROOT / source).is_dir() else ""
            folder = there if end else os.path.dirname(there)
            self.operator.run(
                f"cd ~/checkout && {shell} {target} mkdir -p {folder} &&"
                f" rsync -a -e '{shell}' {source}{end} {target}:{there}{end}"
            )
        head = self.machines[0].address
        join = (
            "source ~/.bashrc; cd ~/callboard && .ci/venv && .venv/bin/callboard join --detach"
            f" --head {head} --node-address {machine.address}"
        )
        self.say(machine.run(join, timeout_s=UP_TIMEOUT_S).strip().splitlines()[-1])
        self.machines.append(machine)
        self._wait_serving(machine, "four serves, code and environment included", began)
        self.run_wide(400)

    def down(self) -> None:
        """Run `ray down` and look for what is left (10)."""
        self.say("ray down")
        self.machines.pop().run("~/callboard/.venv/bin/callboard down", timeout_s=STEP_TIMEOUT_S)
        self._follow(f"cd ~/checkout && {RAY} down -y cluster.yaml", STEP_TIMEOUT_S, "is down")
        for machine in self.machines:
            names = set(machine.run("ps -eo comm=").split())
            left = sorted(names - set(_OWN_PROGRAMS))
            folders = machine.run("ls /tmp /dev/shm").split()
            folders = [name for name in folders if name.startswith(("callboard", "ray"))]
            if left or folders:
                raise HostError(f"{machine.name}: left over: {left} {folders}")
        self.say("no process, run folder or shared memory is left on any machine")

    # --- parts ------------------------------------------------------------------------------------

    def _add_machine(self, name: str) -> Host:
        host = self._network.add_host(name)
        lines = f"export PIP_NO_INDEX=1 PIP_FIND_LINKS={self._wheels} UV_NO_INDEX=1 UV_OFFLINE=1\n"
        # What a machine without a package index of its own says to pip: a folder of wheels.
        file = host.home / ".bashrc"
        file.write_text(lines, encoding="ascii")
        os.chown(file, UID, UID)
        return host

    def _fill_in(self) -> None:
        checkout = self.operator.home / "checkout"
        checkout.mkdir()
        os.chown(checkout, UID, UID)
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout
        copy = ["rsync", "--archive", f"--chown={UID}:{UID}", "--files-from=-", f"{ROOT}/"]
        subprocess.run([*copy, str(checkout)], input=names, check=True)
        text = (ROOT / "cluster.yaml").read_text(encoding="utf-8")
        told = yaml.safe_load(text)["provider"]
        addresses = [told["head_ip"], *told["worker_ips"]]
        for given, machine in zip(addresses, self.machines, strict=True):
            text = text.replace(given, machine.address)
        (checkout / "cluster.yaml").write_text(text, encoding="utf-8")
        network = self.operator.address.rpartition(".")[0] + ".0/24"
        secrets_file = checkout / "callboard.toml"
        secrets_file.write_text(
            f'database_url = "{self.postgres.database_url}"\n'
            f'owner_url = "{self.postgres.owner_url}"\n'
            f'deployment_key = "{secrets.token_hex(32)}"\n'
            f'ray_token = "{secrets.token_hex(32)}"\n'
            # The agents are on the operator's host; dispatches leave from every machine.
            f'egress_allow = ["{network}"]\ndispatch = "spread"\n',
            encoding="utf-8",
        )
        secrets_file.chmod(0o600)
        os.chown(secrets_file, UID, UID)

    def _clients(
        self,
        verb: str,
        urls: Sequence[str],
        *options: str,
        on_line: Callable[[str], None] = lambda _line: None,
    ) -> None:
        words = [verb, self.operator.address, self._key, *urls, *options]
        command = f"cd ~/checkout && {PYTHON} -m scripts.cluster_demo.clients {' '.join(words)}"
        self._follow(command, STEP_TIMEOUT_S, " in ", on_line)

    def _follow(
        self,
        command: str,
        timeout_s: float,
        shown: str,
        on_line: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """Run a command on the operator's host; say the lines that contain a text."""
        deadline = time.monotonic() + timeout_s
        lines: list[str] = []
        with subprocess.Popen(
            ["timeout", "--kill-after=10", f"{timeout_s:.0f}", *self.operator.inside(command)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line.rstrip())
                on_line(line.rstrip())
                if shown in line and "VINFO" not in line and "INFO" not in line:
                    self.say(f"  {line.strip()}")
        (KEPT / "last.log").write_text("\n".join(lines), encoding="utf-8")
        if process.returncode != 0 or time.monotonic() > deadline:
            raise HostError("\n".join([f"exit status {process.returncode}", *lines[-40:]]))

    def _wait_serving(self, machine: Host, text: str, began: float) -> None:
        # Three replies in a row: a machine that is about to restart Ray may still answer once.
        in_a_row = 0
        while in_a_row < 3:
            in_a_row = in_a_row + 1 if self._serves(machine) else 0
            if time.monotonic() - began > WAIT_S:
                raise HostError(f"{machine.name} does not serve after {WAIT_S:.0f} s")
            time.sleep(0.5)
        self.say(f"{text}: {time.monotonic() - began:.1f} s")

    def _serves(self, machine: Host) -> bool:
        url = f"http://{machine.address}:{API_PORT}/ready"
        probe = ["ip", "netns", "exec", self.operator.namespace, "curl", "-sf", "-m", "2", url]
        return subprocess.run(probe, capture_output=True).returncode == 0

    def _check_money(self) -> None:
        twice = self.postgres.count(_PAID)
        self.say(f"nodes paid twice: {twice}")
        if twice:
            raise HostError(f"{twice} nodes were paid twice")


def _restarts(machine: Host) -> int:
    """Return how often the machine's supervisor has started Ray again."""
    log = machine.home / ".local/share/callboard/default/logs/supervisor.log"
    return log.read_text(encoding="utf-8", errors="replace").count("Ray is back")


def _line(text: str, mark: str) -> str:
    return next((line.strip() for line in text.splitlines() if mark in line), "unknown")


def wheels_folder() -> Path:
    """Return a folder with every locked package, which hosts without a network install from."""
    folder = KEPT / "wheels"
    lock = ROOT / "requirements.lock"
    stamp = folder / "lock"
    if not stamp.exists() or stamp.read_bytes() != lock.read_bytes():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        print("fetching the locked packages once", flush=True)
        command = [str(PYTHON), "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*command, "-r", str(lock), "-d", str(folder)], check=True)
        shutil.copy(lock, stamp)
    return folder


def main() -> int:
    """Run the demonstration."""
    reason = why_not()
    if reason:
        print(f"SKIPPED: {reason}", flush=True)
        return SKIPPED
    # Ended by a signal, the hosts are removed on the way out too; a shell that starts this in the
    # background has set SIGINT to be ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _frame: sys.exit(128 + got))
    KEPT.mkdir(exist_ok=True)
    wheels = wheels_folder()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="hosts-", dir=KEPT))
        folder.chmod(0o755)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        network = stack.enter_context(Network(folder))
        try:
            demo = Demo(network, wheels)
            demo.say("hosts: " + ", ".join(f"{h.name} {h.address}" for h in network.hosts))
            demo.up()
            demo.run_article()
            demo.run_wide(1_000)
            demo.cut_off(demo.machines[2])
            demo.kill_all(demo.machines[1])
            demo.kill_gcs()
            demo.add_fourth()
            demo.kill_head()
            demo.down()
        except HostError as failure:
            print(f"FAILED: {failure}", file=sys.stderr, flush=True)
            keep = KEPT / "failed-logs"
            shutil.rmtree(keep, ignore_errors=True)
            for host in network.hosts:
                logs = host.home / ".local/share/callboard/default/logs"
                if logs.exists():
                    shutil.copytree(logs, keep / host.name)
            return 1
    print("the hosts are removed", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
