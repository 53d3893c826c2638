"""Deployments of a checkout: the code in a folder, run by the environment in its `.venv`.

The benchmark's own code is that of the checkout it is started from; only the service differs.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.platform.deployments import ROOT, free_port

# Settings that differ between two deployments of the same configuration.
PLACES = {"home", "run_folder", "port", "public_url"}


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder with the service's source and a `.venv` that has its requirements."""

    root: Path

    @classmethod
    def at(cls, folder: str | None) -> Checkout:
        """Return the checkout in a folder; None: the checkout of this module."""
        root = ROOT if folder is None else Path(folder).resolve()
        found = cls(root)
        if not found.python.exists():
            raise SystemExit(f"{root}: got no .venv/bin/python, expected a checkout with its .venv")
        return found

    @property
    def python(self) -> Path:
        """Return the interpreter of the checkout's environment."""
        return self.root / ".venv" / "bin" / "python"

    @property
    def interpreter(self) -> str:
        """Return the version and the build of the environment's Python, as it says them itself."""
        command = [str(self.python), "-c", "import sys; print(sys.version)"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    @property
    def commit(self) -> str:
        """Return the short name of the checked-out commit, with a mark for local changes."""
        command = ["git", "-C", str(self.root), "describe", "--always", "--dirty"]
        found = subprocess.run(command, capture_output=True, text=True)
        return found.stdout.strip() or "unknown"

    def supervisor(self, *arguments: str) -> str:
        """Run the checkout's `serve_app.supervisor` to its end; return what it printed."""
        command = [str(self.python), "-m", "serve_app.supervisor", *arguments]
        ended = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        if ended.returncode != 0:
            raise SystemExit(f"{' '.join(command)}:\n{ended.stdout}{ended.stderr}")
        return ended.stdout

    @contextmanager
    def deployment(self, toml: str = "") -> Iterator[Path]:
        """Start a deployment and yield its folder; end it and remove its data afterwards.

        Args:
            toml: the text of its `callboard.toml`.
        """
        with tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder:
            home = Path(folder)
            (home / "callboard.toml").write_text(toml, encoding="utf-8")
            try:
                # A start that is broken off is ended too.
                self.supervisor("up", "--home", folder, "--port", str(free_port()), "--detach")
                yield home
            finally:
                self.supervisor("down", "--home", folder)

    def settings(self, home: Path) -> dict[str, Any]:
        """Return the deployment's settings by name, without those of its location."""
        text = self.supervisor("settings", "--home", str(home), "--output", "json")
        rows: dict[str, dict[str, Any]] = json.loads(text)
        return {name: row["value"] for name, row in rows.items() if name not in PLACES}
