"""The demonstration where hosts cannot be made: three Ray nodes of one deployment on this machine.

1. `callboard up`, and two raylets that join its head. 2. The demonstration's workflow. 3. A wide
graph. 4. One raylet is killed while workflows run: the others finish them. 5. `callboard down`.
No `ray up`, no network between machines, one API: less than the hosts show, and said so.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from callboard.client import Client
from scripts.cluster_demo.demo import PYTHON, RAY, ROOT, STEP_TIMEOUT_S, WAIT_S
from scripts.cluster_demo.hosts import HostError
from serve_app.supervisor.deployment import Deployment, run_folder_of
from serve_app.supervisor.processes import marked_processes, process_name

MACHINES = 3
_CALLBOARD = ROOT / ".venv" / "bin" / "callboard"
_LOOPBACK = "127.0.0.1"
_OBJECT_STORE_BYTES = 80 * 1024 * 1024
_LOOK_S = 0.2


class LocalCluster:
    """A deployment with several raylets on this machine.

    Args:
        home: an empty folder for it.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._deployment = Deployment(home, run_folder_of(home))
        self._own = ["--home", str(home)]
        self._key, self._url = "", ""
        self._added: list[int] = []

    def __enter__(self) -> LocalCluster:
        (self._home / "callboard.toml").write_text('dispatch = "spread"\n', encoding="utf-8")
        run([str(_CALLBOARD), "up", *self._own, "--port", str(_free_port()), "--detach"])
        self._url = (self._home / "url").read_text(encoding="utf-8").strip()
        self._key = (self._home / "admin.key").read_text(encoding="utf-8").strip()
        return self

    def __exit__(self, *_failure: object) -> None:
        run([str(_CALLBOARD), "down", *self._own])

    def raylets(self) -> set[int]:
        """Return the process ids of its raylets."""
        marked = marked_processes(self._deployment.id)
        return {pid for pid in marked if process_name(pid) == "raylet"}

    def add_machine(self) -> None:
        """Start one more raylet, which ends with the deployment: it carries its mark."""
        known = self.raylets()
        environ = Path(f"/proc/{min(known)}/environ").read_bytes().split(b"\0")
        variables = dict(os.fsdecode(text).split("=", 1) for text in environ if b"=" in text)
        command = [str(RAY), "start", f"--address={variables['RAY_ADDRESS']}", "--num-cpus=1"]
        command += [f"--node-ip-address={_LOOPBACK}", "--min-worker-port=0", "--max-worker-port=0"]
        command += [f"--dashboard-agent-listen-port={_free_port()}", "--disable-usage-stats"]
        command += [f"--metrics-export-port={_free_port()}", "--log-color=false"]
        command += [f"--object-store-memory={_OBJECT_STORE_BYTES}"]
        run(command, environment=variables, folder=self._deployment.run_folder)
        self._added += self.raylets() - known

    def kill_machine(self) -> None:
        """Kill -9 one of the raylets that were added."""
        os.kill(self._added.pop(), signal.SIGKILL)

    def wait_members(self, count: int) -> str:
        """Wait until so many members live and hold all shards; return what each holds.

        Raises:
            HostError: they do not within `WAIT_S`.
        """
        deadline = time.monotonic() + WAIT_S
        with Client(self._url, self._key) as client:
            while True:
                reply = client.cluster()
                live = [one for one in reply.members if one.is_live]
                text = ", ".join(f"{one.machine[:8]} {one.shards} shards" for one in live)
                if len(live) == count and all(one.shards for one in live):
                    return text
                if time.monotonic() > deadline:
                    raise HostError(f"{count} members do not hold all shards: {text}")
                time.sleep(_LOOK_S)

    def clients(self, verb: str, *options: str) -> subprocess.Popen[str]:
        """Start a verb of `clients.py` at its API."""
        module = [str(PYTHON), "-m", "scripts.cluster_demo.clients", verb]
        command = [*module, _LOOPBACK, self._key, self._url, *options]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def run(
    command: Sequence[str], *, environment: dict[str, str] | None = None, folder: Path = ROOT
) -> str:
    """Run a command and return what it printed.

    Raises:
        HostError: it failed.
    """
    done = subprocess.run(
        command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=STEP_TIMEOUT_S,
    )  # fmt: skip
    if done.returncode != 0:
        raise HostError(f"{command[0]} {command[1]}: {done.stdout}{done.stderr}")
    return done.stdout


def run_local() -> None:
    """Run the demonstration on three local Ray nodes.

    Raises:
        HostError: something is not as it should be.
    """
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="callboard-") as folder:
        say("three local Ray nodes")
        with LocalCluster(Path(folder)) as cluster:
            for _ in range(MACHINES - 1):
                cluster.add_machine()
            say(f"its members: {cluster.wait_members(MACHINES)}")
            _follow(cluster.clients("article"), say)
            _follow(cluster.clients("wide", "--nodes", "1000"), say)
            say("10 workflows of 40 nodes; a raylet is killed meanwhile")
            options = ("--workflows", "10", "--nodes", "40", "--delay", "1.0")
            _follow(cluster.clients("wide", *options), say, cluster.kill_machine)
            say(f"its members: {cluster.wait_members(MACHINES - 1)}")
        say("the deployment is removed")


def _follow(
    process: subprocess.Popen[str],
    say: Callable[[str], None],
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Say the outcome of clients; do something when their first nodes are done."""
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            if meanwhile is not None and line.endswith("nodes done\n"):
                meanwhile()
                meanwhile = None
            elif " in " in line:
                say(f"  {line.strip()}")
    if process.returncode != 0:
        raise HostError(f"{process.args!r}: exit status {process.returncode}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])
