"""The peers' environment, `.peers`, which `make peers` makes: interpreter, server, versions."""

from __future__ import annotations

import json
import os
import subprocess
from importlib.metadata import distributions
from pathlib import Path

from tests.platform.deployments import ROOT

FOLDER = ROOT / ".peers"
PYTHON = FOLDER / "venv" / "bin" / "python"
_PACKAGES = FOLDER / "node_modules" / "@restatedev"
_NAMED = {
    "dbos": ("dbos", "sqlalchemy", "psycopg", "aiohttp", "uvloop"),
    "restate": ("restate-sdk", "granian", "aiohttp", "uvloop"),
}


def require() -> None:
    """Refuse to go on without the peers' environment.

    Raises:
        SystemExit: it is not there.
    """
    if not PYTHON.exists() or not _PACKAGES.exists():
        raise SystemExit(f"got no {FOLDER}, expected the peers' environment: run `make peers`")


def restate_server() -> Path:
    """Return the server's program, which is in the package of this machine's kind."""
    found = sorted(_PACKAGES.glob("restate-server-*/bin/restate-server"))
    if not found:
        raise SystemExit(f"got no server in {_PACKAGES}, expected one of this machine's kind")
    return found[0]


def versions(system: str) -> dict[str, str]:
    """Return the versions of what decides a peer's speed, by package."""
    (packages,) = (FOLDER / "venv" / "lib").glob("python3.*/site-packages")
    found = {
        one.metadata["Name"].lower(): one.version for one in distributions(path=[str(packages)])
    }
    named = {one: found[one] for one in _NAMED[system]}
    if system == "restate":
        server = json.loads((_PACKAGES / "restate-server" / "package.json").read_text("utf-8"))
        named["restate-server"] = server["version"]
    return named


def start(
    module: str, *arguments: str, environment: dict[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start a peer's service by its own interpreter; its standard output is a pipe.

    Args:
        module: in `bench.peers.services`.
        environment: added to this process's.
        log: gets its standard error.
    """
    command = [str(PYTHON), "-m", f"bench.peers.services.{module}", *arguments]
    with log.open("ab") as errors:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
