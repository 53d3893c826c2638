"""Builds both wheels, and makes environments that hold them and what they need; all offline.

The light environment is resolved by an installer (`--no-index --find-links`) from a folder with the
two wheels and one wheel of each package that the light one needs, made again of what is installed
beside the tests: a dependency that is not declared is missing there. The server's dependencies are
many and large (Ray alone has 200 MB): its environment installs both wheels without them and finds
them by a .pth in the tests' own environment, whose editable checkout a .pth does not reach.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent.parent
SERVER = ROOT / "packaging" / "server"
# What a user's shell may hold, and must not matter.
_SEARCH = ("PYTHONPATH", "CALLBOARD_URL", "CALLBOARD_API_KEY", "CALLBOARD_HOME", "VIRTUAL_ENV")


def run(command: list[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command outside the checkout's search path."""
    inherited = {name: value for name, value in os.environ.items() if name not in _SEARCH}
    return subprocess.run(
        command,
        cwd=cwd,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def build(project: Path, folder: Path) -> Path:
    """Build a project's wheel into a folder and return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    before = set(folder.iterdir())
    built = run(command, project)
    assert built.returncode == 0, built.stderr
    (wheel,) = set(folder.iterdir()) - before
    return wheel


def closure(requirements: list[str]) -> dict[str, Distribution]:
    """Return every installed distribution that these requirements need, by its name."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        extras = {"", *requirement.extras}
        wanted = not requirement.marker or requirement.marker.evaluate()
        if name in found or not wanted:
            continue
        found[name] = distribution(name)
        for text in found[name].requires or []:
            needed = Requirement(text)
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                needed.marker = None
                waiting.append(needed)
    return found


def packed(installed: Distribution, folder: Path) -> Path:
    """Make a wheel of an installed distribution, without what its installer added."""
    tags = [
        line.removeprefix("Tag: ").split("-")
        for line in (installed.read_text("WHEEL") or "").splitlines()
        if line.startswith("Tag: ")
    ]
    # Several tags are one name: py2.py3-none-any.
    tag = "-".join(".".join(sorted(set(part))) for part in zip(*tags, strict=True))
    name = canonicalize_name(installed.metadata["Name"]).replace("-", "_")
    wheel = folder / f"{name}-{installed.version}-{tag}.whl"
    added = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
    lines = []
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in installed.files or []:
            if ".." in file.parts or file.suffix == ".pyc" or file.name in added:
                continue
            content = file.read_binary()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            lines.append(f"{file},sha256={digest.decode()},{len(content)}")
            archive.writestr(str(file), content)
        record = f"{name}-{installed.version}.dist-info/RECORD"
        archive.writestr(record, "\n".join([*lines, f"{record},,", ""]))
    return wheel


def environment(folder: Path, find_links: Path, *requirements: str) -> Path:
    """Make an empty environment, install into it from a folder alone, and return its Python."""
    made = run([sys.executable, "-m", "venv", "--without-pip", str(folder)], folder.parent)
    assert made.returncode == 0, made.stderr
    python = folder / "bin" / "python"
    uv = [str(Path(sys.executable).parent / "uv"), "pip", "install", "--quiet", "--no-config"]
    offline = ["--offline", "--no-cache", "--no-index", "--find-links", str(find_links)]
    installed = run(
        [*uv, *offline, "--python", str(python), *requirements], folder.parent, UV_FIND_LINKS=""
    )
    assert installed.returncode == 0, installed.stderr
    return python
