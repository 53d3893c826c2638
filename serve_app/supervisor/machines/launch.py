"""Starts and ends all machines of a cluster; `ray up` and `ray down` run this on the head.

`python -m serve_app.supervisor.machines.launch up|down CONFIG`, with the configuration that
`ray up` has copied to the head. The steps of `up`:

1. Start the head. At the same time, copy the code to each worker and make its environment.
2. When the environment of a worker is ready, let the worker join.
3. Check the API of every machine.
4. Print for each machine whether it serves or why it does not, and the number that serve.

Exit status: 0 if all machines serve (`up`) or are down (`down`), else 1.

For existing hosts, Ray's own `ray up` leaves steps 1 and 2 to an autoscaler on the head. The
autoscaler does not always start every worker, and `ray up` still reports success (decision
cluster-and-releases). This program reads the same members of `cluster.yaml`.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from serve_app.settings_from_env import child_environment, load_settings
from serve_app.supervisor.deployment import Deployment
from serve_app.supervisor.machines.api_health import wait_api
from serve_app.supervisor.processes import saying

SERVE_TIMEOUT_S = 240.0
_SSH_TIMEOUT_S = 60.0
_COPY_TIMEOUT_S = 600.0
_SETUP_TIMEOUT_S = 1_800.0
_START_TIMEOUT_S = 600.0
_PAUSE_S = 2.0
_WORKERS_AT_ONCE_MAX = 32
# The beginnings of output lines that are not errors: two lines of `bash -i` without a terminal, and
# one line of ssh.
_NOISE = ("bash: cannot set terminal process group", "bash: no job control", "Warning: Permanently")
_ROOT = Path(__file__).resolve().parent.parent.parent.parent


class MachineFailed(RuntimeError):
    """A machine could not be prepared, started or ended; the message says why."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines in the configuration.

    Attributes:
        head, workers: the machines' addresses.
        ssh_user: the name of the user as which the head logs in to the workers.
        ssh_key: the file of the private key for the login; empty: ssh chooses the key.
        mounts: the paths that are copied from the head to every worker.
        setup: the shell commands that make a worker's environment, in order.
        start: the shell commands with which a worker joins, in order.
    """

    head: str
    workers: tuple[str, ...]
    ssh_user: str
    ssh_key: str
    mounts: tuple[str, ...]
    setup: tuple[str, ...]
    start: tuple[str, ...]


def read_cluster(text: str) -> Cluster:
    """Read a configuration of `ray up` for existing hosts.

    Args:
        text: YAML or JSON, as `ray up` leaves it at `~/ray_bootstrap_config.yaml`.

    Raises:
        MachineFailed: a member is missing.
    """
    config: Mapping[str, Any] = yaml.safe_load(text)
    try:
        provider, auth = config["provider"], config["auth"]
        return Cluster(
            head=provider["head_ip"],
            workers=tuple(provider["worker_ips"]),
            ssh_user=auth["ssh_user"],
            ssh_key=auth.get("ssh_private_key", ""),
            # All mounts except Ray's own files, which only the head may have.
            mounts=tuple(path for path in config["file_mounts"] if "ray_bootstrap" not in path),
            # When Ray wrote the file, it added the common commands to `worker_setup_commands`.
            setup=tuple(config.get("worker_setup_commands") or config.get("setup_commands") or ()),
            start=tuple(config["worker_start_ray_commands"]),
        )
    except (KeyError, TypeError) as error:
        raise MachineFailed(f"the cluster's configuration has no {error}") from None


class Worker:
    """A worker, on which the head runs commands by ssh.

    Args:
        cluster: the worker's cluster.
        address: the worker's address.
        log: the file for the output of every command.
    """

    def __init__(self, cluster: Cluster, address: str, log: Path) -> None:
        self._cluster = cluster
        self.address = address
        self._log = log

    def prepare(self) -> None:
        """Copy the code and the settings to the worker, and make its environment.

        Raises:
            MachineFailed: a step failed.
        """
        self._wait_ssh()
        for path in self._cluster.mounts:
            local = str(Path(path).expanduser())
            is_folder = Path(local).is_dir()
            end = "/" if is_folder else ""
            folder = path if is_folder else str(Path(path).parent)
            self._ssh(f"mkdir -p {_remote(folder)}", "makes a folder", _SSH_TIMEOUT_S)
            target = f"{self._cluster.ssh_user}@{self.address}:{_rsync_path(path)}{end}"
            copy = ["rsync", "--archive", "--compress", "--exclude=__pycache__"]
            copy += ["--delete"] if is_folder else []
            copy += ["--rsh", shlex.join(self._ssh_words()), f"{local}{end}", target]
            self._run(copy, f"takes a copy of {path}", _COPY_TIMEOUT_S)
        for command in self._cluster.setup:
            self._ssh(self._shell(command), f"runs `{command}`", _SETUP_TIMEOUT_S)

    def start(self) -> None:
        """Run the commands with which the worker joins the cluster.

        Raises:
            MachineFailed: a command failed.
        """
        for command in self._cluster.start:
            self._ssh(self._shell(command), "joins", _START_TIMEOUT_S)

    def end(self) -> None:
        """End all processes of the service on the worker.

        Raises:
            MachineFailed: the worker could not be reached, or the command failed.
        """
        command = (
            "test ! -x ~/callboard/.venv/bin/callboard || ~/callboard/.venv/bin/callboard down"
        )
        self._ssh(command, "ends its processes", _START_TIMEOUT_S)

    def _wait_ssh(self) -> None:
        deadline = time.monotonic() + _SSH_TIMEOUT_S
        while True:
            try:
                self._ssh("true", f"takes a login of {self._cluster.ssh_user}", _SSH_TIMEOUT_S)
                return
            except MachineFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)

    def _shell(self, command: str) -> str:
        # Ray uses a login shell too. It lets the user's profile set the environment variables.
        exports = f"export RAY_HEAD_IP={self._cluster.head} NODE_ADDRESS={self.address}"
        return f"bash --login -i -c {shlex.quote(f'{exports} && {command}')}"

    def _ssh_words(self) -> list[str]:
        key = self._cluster.ssh_key
        words = ["ssh", *(["-i", str(Path(key).expanduser())] if key else [])]
        # Host keys are not checked, as in `ray up`: the machines are in a private network.
        for option in (
            "BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null",
            "IdentitiesOnly=yes", "ConnectTimeout=10", "ServerAliveInterval=5",
            "ServerAliveCountMax=6",
        ):  # fmt: skip
            words += ["-o", option]
        return words

    def _ssh(self, command: str, what: str, timeout_s: float) -> None:
        target = f"{self._cluster.ssh_user}@{self.address}"
        self._run([*self._ssh_words(), target, command], what, timeout_s)

    def _run(self, command: Sequence[str], what: str, timeout_s: float) -> None:
        with self._log.open("ab") as log:
            log.write(f"--- {what}: {shlex.join(command)}\n".encode())
            log.flush()
            began = log.tell()
            try:
                status = subprocess.run(
                    command, env=child_environment({}), stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log, timeout=timeout_s,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                raise MachineFailed(f"not within {timeout_s:.0f} s: it {what}") from None
        if status != 0:
            reason = _last_line(self._log.read_bytes()[began:])
            raise MachineFailed(f"it does not succeed when it {what} (status {status}): {reason}")


def launch(text: str, say: Callable[[str], None]) -> bool:
    """Start the head and the workers. Return whether all machines serve.

    Args:
        text: the configuration; see `read_cluster`.
        say: prints a line of progress.

    Raises:
        MachineFailed: the configuration lacks a member, or the head does not start.
    """
    cluster, loaded = read_cluster(text), load_settings()
    settings, deployment = loaded.settings, loaded.deployment
    workers = _workers(cluster, deployment)
    failures: dict[str, str] = {}
    with ThreadPoolExecutor(max_workers=_WORKERS_AT_ONCE_MAX) as pool:
        prepared = {worker.address: pool.submit(worker.prepare) for worker in workers}
        _start_head(cluster.head)
        say(f"the head {cluster.head} is up")
        joined = [
            pool.submit(_start_worker, worker, prepared[worker.address], failures, say)
            for worker in workers
        ]
        for start in joined:
            start.result()
    addresses = (cluster.head, *cluster.workers)
    serving = 0
    deadline = time.monotonic() + SERVE_TIMEOUT_S
    for address in addresses:
        left_s = 0.0 if address in failures else max(0.0, deadline - time.monotonic())
        missing = failures.get(address) or wait_api(f"http://{address}:{settings.port}", left_s)
        serving += not missing
        say(f"{address}: {missing}" if missing else f"{address} serves")
    say(f"{serving} of {len(addresses)} machines serve")
    return serving == len(addresses)


def end(text: str, say: Callable[[str], None]) -> bool:
    """End the workers, then the head. Return whether all machines are down.

    Args:
        text, say: see `launch`.

    Raises:
        MachineFailed: the configuration lacks a member.
    """
    cluster = read_cluster(text)
    workers = _workers(cluster, load_settings().deployment)
    down = 0
    with ThreadPoolExecutor(max_workers=_WORKERS_AT_ONCE_MAX) as pool:
        for worker, ending in [(worker, pool.submit(worker.end)) for worker in workers]:
            try:
                ending.result()
                say(f"{worker.address} is down")
                down += 1
            except MachineFailed as failure:
                say(f"{worker.address}: {failure}")
    command = [sys.executable, "-m", "serve_app.supervisor", "down"]
    down += subprocess.run(command, cwd=_ROOT).returncode == 0
    return down == 1 + len(workers)


def _workers(cluster: Cluster, deployment: Deployment) -> list[Worker]:
    """Return the workers, each with a log file in the deployment's logs."""
    deployment.logs.mkdir(parents=True, exist_ok=True)
    return [Worker(cluster, one, deployment.logs / f"{one}.log") for one in cluster.workers]


def _start_head(address: str) -> None:
    command = [sys.executable, "-m", "serve_app.supervisor", "join", "--as-head", "--detach"]
    started = subprocess.run([*command, "--node-address", address], cwd=_ROOT)
    if started.returncode != 0:
        raise MachineFailed(f"the head {address} did not start")


def _start_worker(
    worker: Worker, prepared: Future[None], failures: dict[str, str], say: Callable[[str], None]
) -> None:
    try:
        prepared.result()
        worker.start()
        say(f"the worker {worker.address} has joined")
    except MachineFailed as failure:
        failures[worker.address] = str(failure)


def _remote(path: str) -> str:
    """Return a path quoted for the shell of a worker, where `~` is the home of the ssh user."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def _rsync_path(path: str) -> str:
    # rsync does not expand `~`. A relative path begins in the home of the ssh user.
    return path[2:] if path.startswith("~/") else path


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    told = [line for line in lines if line.strip() and not line.startswith(_NOISE)]
    return told[-1] if told else "no output"


def main() -> int:
    """Start or end the cluster of a configuration file; return the exit status."""
    verb, path = sys.argv[1], Path(sys.argv[2]).expanduser()
    say = saying()
    try:
        text = path.read_text(encoding="utf-8")
        is_done = launch(text, say) if verb == "up" else end(text, say)
    except (MachineFailed, OSError) as failure:
        print(f"callboard: {failure}", file=sys.stderr)
        return 1
    return 0 if is_done else 1


if __name__ == "__main__":
    sys.exit(main())
