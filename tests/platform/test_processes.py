"""Ending a deployment's processes: all of them, only them, however they resist."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.embedded.tethered import tethered_command
from serve_app.supervisor.processes import end_marked, marked_processes, wait_end

ROOT = Path(__file__).resolve().parent.parent.parent
_STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
# Popen returns while the new program is being loaded, when its environment reads as empty.
while not open(f"/proc/{child.pid}/environ").read():
    pass
print(child.pid, flush=True)
signal.pause()
"""
# Says so when it has overwritten the environment that it was started with.
_FORGETFUL = """
import ctypes, sys
first = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
ctypes.memset(first[0], 0, len(open("/proc/self/environ", "rb").read()) - 1)
print(flush=True)
sys.stdin.read()
"""


class Started(subprocess.Popen[str]):
    """Ends with its block, also when the test in it fails."""

    def __exit__(self, *error: Any) -> None:
        self.kill()
        super().__exit__(*error)


def started(*command: str, mark: str, cwd: Path = ROOT) -> Started:
    return Started(
        command, cwd=cwd, env={**os.environ, "CALLBOARD_DEPLOYMENT": mark},
        stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def mark() -> Iterator[str]:
    """A mark of this test alone; what still carries it afterwards is ended."""
    mark = secrets.token_hex(4)
    yield mark
    end_marked(mark, grace_s=0)


def test_all_marked_processes_end_and_no_other(mark: str) -> None:
    other_mark = secrets.token_hex(4)
    with (
        started("sleep", "1000", mark=other_mark) as stranger,
        started(sys.executable, "-c", _STUBBORN, mark=f"{mark}.run") as stubborn,
    ):
        assert stubborn.stdout is not None
        grandchild = int(stubborn.stdout.readline())
        assert set(marked_processes(mark)) == {stubborn.pid, grandchild}
        assert end_marked(mark, grace_s=0.1) == 2
        assert marked_processes(mark) == []
        assert stranger.poll() is None


def test_mark_of_one_run_leaves_the_next_run_alone(mark: str) -> None:
    with started("sleep", "1000", mark=f"{mark}.b") as current:
        assert end_marked(f"{mark}.a", grace_s=0) == 0
        assert current.poll() is None


def test_sentinel_ends_grandchildren_of_a_killed_supervisor(mark: str, tmp_path: Path) -> None:
    with started("sleep", "1000", mark="none") as supervisor:
        grandchild = started("sleep", "1000", mark=f"{mark}.run")
        sentinel = started(
            sys.executable, "-m", "serve_app.supervisor.sentinel", str(supervisor.pid),
            f"{mark}.run", str(tmp_path), mark=f"{mark}.run",
        )  # fmt: skip
        forgetful = started(sys.executable, "-c", _FORGETFUL, mark=f"{mark}.run", cwd=tmp_path)
        assert forgetful.stdout is not None
        forgetful.stdout.readline()
        assert not wait_end([sentinel.pid, grandchild.pid, forgetful.pid], 0.3)
        supervisor.kill()
        supervisor.wait()
        for process in (grandchild, sentinel, forgetful):
            assert wait_end([process.pid], 60.0) == {process.pid}
            process.communicate(timeout=60)


@pytest.mark.parametrize("is_folder_gone", [False, True])
def test_who_overwrites_the_mark_is_found_by_its_folder(
    mark: str, tmp_path: Path, is_folder_gone: bool
) -> None:
    """Ray's agents write their title over their environment, whose order is random."""
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    with (
        started(sys.executable, "-c", _FORGETFUL, mark=mark, cwd=run_folder) as forgetful,
        started("sleep", "1000", mark="none", cwd=run_folder) as operators_shell,
        Started(["sleep", "1000"], cwd=run_folder, env={}) as shell_without_environment,
        started(sys.executable, "-c", _FORGETFUL, mark=mark, cwd=tmp_path) as elsewhere,
    ):
        for process in (forgetful, elsewhere):
            assert process.stdout is not None
            process.stdout.readline()
        if is_folder_gone:
            run_folder.rmdir()
        assert marked_processes(mark) == []
        assert marked_processes(mark, run_folder) == [forgetful.pid]
        assert end_marked(mark, run_folder, grace_s=5) == 1
        assert forgetful.poll() is not None
        assert operators_shell.poll() is elsewhere.poll() is None
        assert shell_without_environment.poll() is None


def test_tethered_child_ends_with_its_owner() -> None:
    # The command line is made by the owner: it names the owner's process id.
    script = (
        "import subprocess, signal\n"
        "from ledger.embedded.tethered import tethered_command\n"
        "command = tethered_command(['/bin/sleep', '1000'], end_signal=signal.SIGKILL)\n"
        "child = subprocess.Popen(command)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    with started(sys.executable, "-c", script, mark="none") as owner:
        assert owner.stdout is not None
        child = int(owner.stdout.readline())
        assert not wait_end([child], 0.2)
        owner.kill()
        assert wait_end([child], 60.0) == {child}


def test_tethered_child_of_an_owner_that_is_gone_does_not_start() -> None:
    command = tethered_command(["/bin/sleep", "1000"], end_signal=signal.SIGKILL)
    command[4] = "1"  # the owner's id: not this process
    assert subprocess.run(command, timeout=60).returncode == 0


def test_program_that_cannot_run_is_named() -> None:
    command = tethered_command(["/no/such/program"], end_signal=signal.SIGKILL)
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "/no/such/program: " in ended.stderr
