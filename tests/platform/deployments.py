"""Starts real deployments for tests, by the same command line that people and the CLI use."""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class RunningDeployment:
    """A deployment that is ready: where it is and the key that may do everything."""

    home: Path
    url: str
    admin_key: str

    def down(self) -> None:
        """End every process of it."""
        ended = supervisor("down", "--home", str(self.home))
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


def supervisor(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m serve_app.supervisor` to its end."""
    command = [sys.executable, "-m", "serve_app.supervisor", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def start_deployment(home: Path, *, port: int, extra: tuple[str, ...] = ()) -> RunningDeployment:
    """Run `up --detach` and return when the deployment is ready."""
    started = supervisor("up", "--home", str(home), "--port", str(port), "--detach", *extra)
    assert started.returncode == 0, started.stdout + started.stderr
    return RunningDeployment(
        home=home,
        url=(home / "url").read_text(encoding="utf-8").strip(),
        admin_key=(home / "admin.key").read_text(encoding="utf-8").strip(),
    )
