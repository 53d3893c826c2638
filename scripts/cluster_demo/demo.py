"""The cluster of the demonstration: its hosts, and what people do with it as documented.

`__main__.py` lists the steps, `faults.py` is what is done to it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from scripts.cluster_demo.hosts import SHARED, UID, Host, HostError, Network, run
from scripts.cluster_demo.postgres import Server, share_programs, start_postgres
from scripts.cluster_demo.timeline import Timeline, read_timeline

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / ".cluster-demo"
PYTHON = ROOT / ".venv" / "bin" / "python"
RAY = ROOT / ".venv" / "bin" / "ray"
UP_TIMEOUT_S = 900.0
STEP_TIMEOUT_S = 600.0
WAIT_S = 300.0
API_PORT = 8_000
_RAYS_BLOCK, _FROM_KERNEL = range(12_000, 12_100), 32_768
_LOOPBACK = ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]")
# Of a host at rest: its sshd, and the shell that lists the processes.
_OWN_PROGRAMS = ("sshd", "ps", "bash", "grep", "postgres", "sh")


@dataclass(frozen=True, slots=True)
class Load:
    """A running load: its process, its file of events, and its output."""

    process: subprocess.Popen[bytes]
    file: Path
    log: Path

    def timeline(self) -> Timeline:
        """Return what has happened up to now."""
        if not self.file.exists():
            return Timeline()
        with self.file.open(encoding="utf-8") as lines:
            return read_timeline(lines)

    def output(self) -> str:
        """Return what the process has printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of the load.

        Raises:
            HostError: an accepted workflow has not succeeded.
        """
        if self.process.wait(timeout_s) != 0:
            raise HostError(self.output())


class Demo:
    """One run: the hosts, and what is done with them.

    Args:
        network: in which the hosts are.
    """

    def __init__(self, network: Network) -> None:
        self._began = time.monotonic()
        self.network = network
        # Root: the checkout, whose programs the operator runs, may be readable for nobody else.
        self.operator = network.add_host("operator", user_id=0)
        network.give_key(self.operator)
        self.postgres: Server = start_postgres(network)
        self.machines = [self._add_machine(name) for name in ("one", "two", "three")]
        self.key = ""

    def say(self, text: str) -> None:
        """Print a line with the seconds since the start."""
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", flush=True)

    def url(self, machine: Host) -> str:
        """Return the address of a machine's API."""
        return f"http://{machine.address}:{API_PORT}"

    @property
    def urls(self) -> list[str]:
        return [self.url(machine) for machine in self.machines]

    def up(self) -> None:
        """Fill in cluster.yaml and the secrets, and run `ray up` (2)."""
        self._fill_in()
        self.say(f"ray up on {self.operator.name}")
        said = self.follow(f"cd ~/checkout && {RAY} up -y cluster.yaml", UP_TIMEOUT_S, " serve")
        if "3 of 3 machines serve" not in said:
            raise HostError(f"ray up: {said[-2_000:]}")
        key = self.machines[0].own_files / "admin.key"
        self.key = key.read_text(encoding="ascii").strip()
        state = self.machines[0].run("source ~/.bashrc; serve status", timeout_s=STEP_TIMEOUT_S)
        proxies = state.count("HEALTHY") - state.count("status: HEALTHY")
        self.say(f"serve status: {proxies} proxies healthy, application {_line(state, 'status:')}")

    def deploy_again(self) -> None:
        """Deploy serve.yaml as docs/operations.md says, and wait until all machines serve.

        Raises:
            HostError: Serve does not report within `WAIT_S` that the new application runs.
        """
        deploy = "source ~/.bashrc; cd ~/callboard && serve deploy serve.yaml"
        self.say("serve deploy serve.yaml, by ray exec")
        began = time.time()
        self.follow(
            f"cd ~/checkout && {RAY} exec cluster.yaml '{deploy}'", STEP_TIMEOUT_S, "request"
        )
        while True:
            state = yaml.safe_load(
                self.machines[0].run("source ~/.bashrc; serve status", timeout_s=STEP_TIMEOUT_S)
            )["applications"]["callboard"]
            if state["last_deployed_time_s"] >= began and state["status"] == "RUNNING":
                break
            if time.time() - began > WAIT_S:
                raise HostError(f"the application is not deployed again: {state}")
            time.sleep(1)
        for machine in self.machines:
            self.wait_serving(machine)
        self.say(f"deployed again, and {len(self.machines)} machines serve")

    def run_wide(self, nodes: int) -> None:
        """Run one wide graph; its dispatches must come from every machine (4).

        Raises:
            HostError: the graph has failed, or a machine has sent no dispatch.
        """
        self.say(f"a graph of {nodes} nodes")
        with self.load("--wide", workflows=1, nodes=nodes, delay_s=0.0) as load:
            load.wait(STEP_TIMEOUT_S)
            [workflow], calls = load.timeline().chains, Counter[str]()
            for call in load.timeline().calls:
                calls[call.machine] += call.workflow == workflow
            done = len({c.node for c in load.timeline().calls if c.workflow == workflow})
        self.say(
            f"  {done} of {nodes} nodes, dispatched by {self.spread(calls)};"
            f" {calls.total() - done} called again"
        )
        if done < nodes or any(not calls[machine.address] for machine in self.machines):
            raise HostError("expected all nodes, with dispatches from every machine")

    @contextmanager
    def load(self, *words: str, workflows: int, nodes: int, delay_s: float) -> Iterator[Load]:
        """Run `load.py` on the operator's host for the length of the block."""
        file, log = self.operator.home / "events.jsonl", self.operator.folder / "load.log"
        file.unlink(missing_ok=True)
        told = [self.operator.address, self.key, "~/events.jsonl", *self.urls, *words]
        told += ["--workflows", str(workflows), "--nodes", str(nodes), "--delay", str(delay_s)]
        command = f"cd ~/checkout && {PYTHON} -m scripts.cluster_demo.load {' '.join(told)}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.operator.inside(command), stdin=subprocess.DEVNULL, stdout=output,
                stderr=output,
            )  # fmt: skip
        try:
            yield Load(process, file, log)
        finally:
            process.kill()
            process.wait()

    def spread(self, calls: Counter[str]) -> str:
        """Return how many calls came from each machine, as text."""
        names = {machine.address: machine.name for machine in self.machines}
        return ", ".join(f"{names.get(at, at)} {count}" for at, count in sorted(calls.items()))

    def check_listening(self) -> None:
        """Check that of HAProxy's ports only the API's is open to other machines.

        They may also reach sshd, and the ports of Ray and Serve, which call each other.

        Raises:
            HostError: another socket listens beyond loopback, or the API does not.
        """
        for machine in self.machines:
            open_sockets = [one for one in machine.listening() if one[1] not in _LOOPBACK]
            if ("haproxy", "0.0.0.0", API_PORT) not in open_sockets:
                raise HostError(f"{machine.name}: the API is not open: {open_sockets}")
            for name, address, port in open_sockets:
                is_rays = port in _RAYS_BLOCK or port >= _FROM_KERNEL
                if not ((is_rays and name != "haproxy") or port == API_PORT or name == "sshd"):
                    raise HostError(f"{machine.name}: {name} listens on {address}:{port}")
        self.say("open on every machine: the API, ssh, and what Ray's machines call each other by")

    def down(self) -> None:
        """Run `ray down` and look for what is left (8)."""
        self.say("ray down")
        self.follow(f"cd ~/checkout && {RAY} down -y cluster.yaml", STEP_TIMEOUT_S, "is down")
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
        host = self.network.add_host(name)
        lines = f"export PIP_NO_INDEX=1 PIP_FIND_LINKS={SHARED}/wheels UV_NO_INDEX=1 UV_OFFLINE=1\n"
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

    def follow(self, command: str, timeout_s: float, shown: str) -> str:
        """Run a command on the operator's host; say the lines that contain a text, return all."""
        deadline = time.monotonic() + timeout_s
        lines: list[str] = []
        with subprocess.Popen(
            ["timeout", "--kill-after=10", f"{timeout_s:.0f}", *self.operator.inside(command)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        ) as process:  # fmt: skip
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    lines.append(line.rstrip())
                    if shown in line and "VINFO" not in line and "INFO" not in line:
                        self.say(f"  {line.strip()}")
            except BaseException:
                process.terminate()
                raise
        (KEPT / "last.log").write_text("\n".join(lines), encoding="utf-8")
        if process.returncode != 0 or time.monotonic() > deadline:
            raise HostError("\n".join([f"exit status {process.returncode}", *lines[-40:]]))
        return "\n".join(lines)

    def wait_serving(self, machine: Host) -> None:
        """Wait until a machine's API answers.

        Raises:
            HostError: it does not answer within `WAIT_S`.
        """
        # Three replies in a row: a machine that is about to restart Ray may still answer once.
        in_a_row, began = 0, time.monotonic()
        while in_a_row < 3:
            in_a_row = in_a_row + 1 if self.serves(machine) else 0
            if time.monotonic() - began > WAIT_S:
                raise HostError(f"{machine.name} does not serve after {WAIT_S:.0f} s")
            time.sleep(0.5)

    def serves(self, machine: Host) -> bool:
        """Say whether a machine's API answers now."""
        url = f"{self.url(machine)}/ready"
        probe = ["ip", "netns", "exec", self.operator.namespace, "curl", "-sf", "-m", "2", url]
        return subprocess.run(probe, capture_output=True).returncode == 0


def _line(text: str, mark: str) -> str:
    return next((line.strip() for line in text.splitlines() if mark in line), "unknown")


def shared_folder() -> Path:
    """Return the folder that all hosts share, with what those without a network need.

    Every locked package as a wheel, and Postgres; everyone may read them.
    """
    shared = KEPT / "shared"
    lock, stamp = ROOT / "requirements.lock", shared / "lock"
    if not stamp.exists() or stamp.read_bytes() != lock.read_bytes():
        shutil.rmtree(shared, ignore_errors=True)
        shared.mkdir(parents=True)
        print("fetching the locked packages once", flush=True)
        command = [str(PYTHON), "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        command += ["-r", str(lock), "-d", str(shared / "wheels")]
        run(command, timeout_s=STEP_TIMEOUT_S)
        share_programs(shared)
        run(["chmod", "-R", "a+rX", str(shared)], timeout_s=STEP_TIMEOUT_S)
        shutil.copy(lock, stamp)
    return shared
