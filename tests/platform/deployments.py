"""Starts real deployments for tests, by the same command line that people and the CLI use."""

from __future__ import annotations

import atexit
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from serve_app.supervisor.deployment import run_folder_of

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("actors", "callboard", "core", "federation", "ledger", "serve_app")


@dataclass(frozen=True, slots=True)
class RunningDeployment:
    """A deployment that is ready: where it is and the key that may do everything."""

    home: Path
    url: str
    admin_key: str
    # The folder with the packages that it runs.
    code: Path = ROOT

    @classmethod
    def of(cls, home: Path, code: Path = ROOT) -> RunningDeployment:
        """Return the deployment that is ready in a home."""
        url = (home / "url").read_text(encoding="utf-8").strip()
        return cls(home, url, (home / "admin.key").read_text(encoding="utf-8").strip(), code)

    def replica_place(self) -> tuple[str, int]:
        """Return where a replica of the API listens itself, by what Serve tells HAProxy."""
        for file in run_folder_of(self.home).glob("h/*/haproxy.cfg"):
            found = re.search(r"^ *server SERVE_REPLICA\S+ (\S+):(\d+) ", file.read_text(), re.M)
            if found is not None:
                return found[1], int(found[2])
        raise LookupError("HAProxy knows no replica")

    def up_again(self) -> None:
        """Start it once more at its port after its supervisor has died; nothing of it is new."""
        again = start_deployment(self.home, port=int(self.url.rpartition(":")[2]), code=self.code)
        assert again == self

    def down(self) -> None:
        """End every process of it."""
        ended = supervisor("down", "--home", str(self.home), code=self.code)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def free_port() -> int:
    """Return a port that no process listens on now, below those that the kernel hands out itself.

    A port of the kernel's range could be given to a connection before the deployment takes it.
    """
    while True:
        port = 9_000 + secrets.randbelow(3_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def is_healthy(url: str) -> bool:
    """Say whether the API says that all is well."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def supervisor(*arguments: str, code: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `python -m serve_app.supervisor` of this code to its end."""
    command = [sys.executable, "-m", "serve_app.supervisor", *arguments]
    return subprocess.run(command, cwd=code, capture_output=True, text=True)


def copy_code(folder: Path) -> Path:
    """Make a folder with the code of the service, which a test may change, and return it."""
    for package in PACKAGES:
        # With what is compiled; a file that another process compiles now may be gone when copied.
        ignored = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    return folder


def start_deployment(home: Path, *, port: int, code: Path = ROOT) -> RunningDeployment:
    """Run `up --detach` and return when the deployment is ready."""
    end_with_this_process(home)
    started = supervisor("up", "--home", str(home), "--port", str(port), "--detach", code=code)
    assert started.returncode == 0, started.stdout + started.stderr
    return RunningDeployment.of(home, code)


@contextmanager
def deployed(folder: Path, settings: str = "", *, code: Path = ROOT) -> Iterator[RunningDeployment]:
    """Run a deployment with these settings, in a home of its own below a folder, for a block."""
    home = Path(tempfile.mkdtemp(prefix="up-", dir=folder))
    if settings:
        (home / "callboard.toml").write_text(settings, encoding="utf-8")
    running = start_deployment(home, port=free_port(), code=code)
    try:
        yield running
    finally:
        running.down()


def end_with_this_process(home: Path) -> None:
    """Let the deployment of a home be ended after this process, if it runs then.

    A worker of `pytest -n` that crashes comes to no fixture's end.
    """
    writing = _sentinel().stdin
    assert writing is not None
    writing.write(f"{home}\n")
    writing.flush()


def processes_below(home: Path) -> list[str]:
    """Return the command lines of all processes that name a home, or what is in it or in its run
    folder.
    """
    folders = (os.fsencode(home) + b"/", os.fsencode(run_folder_of(home)) + b"/")
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(home) in line.split(b"\0") or any(folder in line for folder in folders):
            found.append(line.replace(b"\0", b" ").decode("utf-8", "replace"))
    return found


@cache
def _sentinel() -> subprocess.Popen[str]:
    """Return the process that outlives this one and ends its deployments."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.platform.sentinel"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )

    def leave() -> None:
        with process:  # closes its standard input, and waits
            pass

    atexit.register(leave)
    return process
