"""Ending a deployment's processes: all of them, only them, however they resist."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.tethered import tethered_command
from serve_app.processes import end_marked, marked_processes, wait_end

ROOT = Path(__file__).resolve().parent.parent.parent
_STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(child.pid, flush=True)
signal.pause()
"""


def started(*command: str, mark: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "CALLBOARD_DEPLOYMENT": mark},
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
        stranger.kill()


def test_mark_of_one_run_leaves_the_next_run_alone(mark: str) -> None:
    with started("sleep", "1000", mark=f"{mark}.b") as current:
        assert end_marked(f"{mark}.a", grace_s=0) == 0
        assert current.poll() is None
        current.kill()


def test_sentinel_ends_grandchildren_of_a_killed_supervisor(mark: str) -> None:
    with started("sleep", "1000", mark="none") as supervisor:
        grandchild = started("sleep", "1000", mark=f"{mark}.run")
        sentinel = started(
            sys.executable, "-m", "serve_app.sentinel", str(supervisor.pid), f"{mark}.run",
            mark=f"{mark}.run",
        )  # fmt: skip
        assert not wait_end([sentinel.pid, grandchild.pid], 0.3)
        supervisor.kill()
        supervisor.wait()
        assert wait_end([grandchild.pid], 20.0) == {grandchild.pid}
        for process in (grandchild, sentinel):
            process.communicate(timeout=20)


def test_tethered_child_ends_with_its_owner() -> None:
    # The command line is made by the owner: it names the owner's process id.
    script = (
        "import subprocess, signal\n"
        "from ledger.tethered import tethered_command\n"
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
        assert wait_end([child], 20.0) == {child}


def test_tethered_child_of_an_owner_that_is_gone_does_not_start() -> None:
    command = tethered_command(["/bin/sleep", "1000"], end_signal=signal.SIGKILL)
    command[4] = "1"  # the owner's id: not this process
    assert subprocess.run(command, timeout=20).returncode == 0


def test_program_that_cannot_run_is_named() -> None:
    command = tethered_command(["/no/such/program"], end_signal=signal.SIGKILL)
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "/no/such/program: " in ended.stderr
