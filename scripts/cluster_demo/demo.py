"""The cluster of the demonstration: its hosts, and what people do with it as documented.

`__main__.py` lists the steps, `faults.py` is what is done to it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from scripts.cluster_demo.hosts import UID, USER, Host, HostError, Network
from scripts.cluster_demo.postgres import Server, start_postgres

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / ".cluster-demo"
PYTHON = ROOT / ".venv" / "bin" / "python"
RAY = ROOT / ".venv" / "bin" / "ray"
UP_TIMEOUT_S = 1_500.0
STEP_TIMEOUT_S = 600.0
WAIT_S = 300.0
API_PORT = 8_000
# Of the machine whose disk becomes full: enough for logs, Ray's session, and what pip unpacks.
DISK_MIB = 768
# Of a host at rest: its sshd, and the shell that lists the processes.
_OWN_PROGRAMS = ("sshd", "ps", "bash", "grep", "postgres", "sh")


class Demo:
    """One run: the hosts, and what is done with them.

    Args:
        network: in which the hosts are.
        wheels: the folder from which the machines install packages.
    """

    def __init__(self, network: Network, wheels: Path) -> None:
        self._began = time.monotonic()
        self.network = network
        self._wheels = wheels
        self.operator = network.add_host("operator")
        network.give_key(self.operator)
        self.postgres: Server = start_postgres(network)
        sizes_mib = {"one": 0, "two": 0, "three": DISK_MIB}
        self.machines = [self._add_machine(name, mib) for name, mib in sizes_mib.items()]
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
        self.follow(f"cd ~/checkout && {RAY} up -y cluster.yaml", UP_TIMEOUT_S, " serve")
        key = self.machines[0].own_files / "admin.key"
        self.key = key.read_text(encoding="ascii").strip()
        state = self.machines[0].run("source ~/.bashrc; serve status", timeout_s=STEP_TIMEOUT_S)
        proxies = state.count("HEALTHY") - state.count("status: HEALTHY")
        self.say(f"serve status: {proxies} proxies healthy, application {_line(state, 'status:')}")

    def run_article(self) -> None:
        """Run the demonstration's workflow through every API (3)."""
        self.say("the demonstration's workflow through each machine's API")
        self.clients("article", self.urls)

    def run_wide(self, nodes: int) -> None:
        """Run one wide graph and print where its dispatches came from (4)."""
        self.say(f"a graph of {nodes} nodes")
        self.clients("wide", self.urls[:1], "--nodes", str(nodes))

    def add_fourth(self) -> None:
        """Let a machine join by hand, as docs/operations.md says (6)."""
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
        self.wait_serving(machine)
        took_s = time.monotonic() - began
        self.say(f"four serves, code and environment included: {took_s:.1f} s")
        self.run_wide(400)

    def down(self) -> None:
        """Run `ray down` and look for what is left (8)."""
        self.say("ray down")
        self.machines.pop().run("~/callboard/.venv/bin/callboard down", timeout_s=STEP_TIMEOUT_S)
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

    def _add_machine(self, name: str, disk_mib: int = 0) -> Host:
        host = self.network.add_host(name, disk_mib=disk_mib)
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

    def clients(self, verb: str, urls: Sequence[str], *options: str) -> None:
        """Run a verb of `clients.py` on the operator's host."""
        words = [verb, self.operator.address, self.key, *urls, *options]
        command = f"cd ~/checkout && {PYTHON} -m scripts.cluster_demo.clients {' '.join(words)}"
        self.follow(command, STEP_TIMEOUT_S, " in ")

    def follow(self, command: str, timeout_s: float, shown: str) -> None:
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
                if shown in line and "VINFO" not in line and "INFO" not in line:
                    self.say(f"  {line.strip()}")
        (KEPT / "last.log").write_text("\n".join(lines), encoding="utf-8")
        if process.returncode != 0 or time.monotonic() > deadline:
            raise HostError("\n".join([f"exit status {process.returncode}", *lines[-40:]]))

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
