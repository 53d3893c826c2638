"""Does what a newcomer does with the wheels: `python -m scripts.first_hour`; part of `.ci/run`.

1. Build both wheels as `make wheels` does.
2. Install the light one, with its dependencies, into an empty environment; it imports and has help.
3. Install the server's into the same environment.
4. In a home folder of its own, run the commands of the README section "Running it", with its agent
   and its workflow. An upgrade to the same release runs before the last command.

`make test` covers none of it: its wheels lie beside the packages of the tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
_TIMEOUT_S = 300


def main() -> None:
    """Run all of it; a command that fails ends it."""
    with tempfile.TemporaryDirectory(prefix="first-hour-") as name:
        folder = Path(name)
        programs = folder / "env" / "bin"
        dropped = {"PYTHONPATH", "VIRTUAL_ENV"}
        environment = {
            variable: value
            for variable, value in os.environ.items()
            if variable not in dropped and not variable.startswith("CALLBOARD_")
        }
        _install(folder, environment)
        environment |= {"HOME": name, "PATH": f"{programs}:{environment['PATH']}"}
        try:
            _follow_readme(folder, environment)
        finally:
            _run("callboard down", folder, environment)


def _install(folder: Path, environment: dict[str, str]) -> None:
    uv = f"'{ROOT}/.venv/bin/uv'"
    wheels = folder / "wheels"
    _run(f"'{sys.executable}' -m hatchling build -t wheel -d {wheels}", ROOT, environment)
    server = ROOT / "packaging" / "server"
    _run(f"'{sys.executable}' -m hatchling build -t wheel -d {wheels}", server, environment)
    _run(f"{uv} venv --quiet --python '{sys.executable}' {folder}/env", folder, environment)
    # The lock only says which versions; what is installed is what the wheels ask for.
    install = f"{uv} pip install --quiet --python {folder}/env/bin/python --find-links {wheels}"
    install += f" --constraints '{ROOT}/requirements.lock'"
    # Each as a shell of CI would: with the indexes of this machine.
    sourced = f"cd '{ROOT}' && pip='.venv/bin/python -m pip' && . .ci/indexes && {install}"
    _run(f"{sourced} callboard", folder, environment)
    _run(f"{folder}/env/bin/callboard --help", folder, environment)
    source = "import callboard; callboard.Agent, callboard.Client"
    _run(f"{folder}/env/bin/python -c '{source}'", folder, environment)
    _run(f"{sourced} 'callboard[server]'", folder, environment)


def _follow_readme(folder: Path, environment: dict[str, str]) -> None:
    commands = re.search(r"^```\n(callboard up --detach.*?)^```$", README, re.M | re.S)
    assert commands is not None, (
        "the README has no commands that begin with `callboard up --detach`"
    )
    up, *others, audit, down = commands[1].splitlines()
    agent, workflow = re.findall(r"^```python\n(.*?)^```$", README, re.M | re.S)[:2]
    _run(up, folder, environment)
    with subprocess.Popen(
        ["python", "-c", agent], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as serving:
        try:
            assert serving.stdout is not None
            assert "ready at" in serving.stdout.readline()
            (folder / "workflow.py").write_text(workflow)
            for command in (*others, "python workflow.py", "callboard upgrade", *others, audit):
                _run(command, folder, environment)
        finally:
            serving.terminate()
    _run(down, folder, environment)


def _run(command: str, folder: Path, environment: dict[str, str]) -> None:
    sys.stdout.write(f"$ {command}\n")
    sys.stdout.flush()
    subprocess.run(command, shell=True, cwd=folder, env=environment, check=True, timeout=_TIMEOUT_S)


if __name__ == "__main__":
    main()
