"""Whether a process runs, asked of the kernel about real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from serve_app.supervisor.frozen_processes import CHECKS_MAX, FrozenProcesses
from tests.platform.waiting import wait_until

# Wakes by its own timer, as Ray's do, and says so; or computes and never sleeps.
WAKING = (
    "import sys, time\nwhile True: time.sleep(0.002); sys.stdout.write('.'); sys.stdout.flush()"
)
BUSY = "print('.', flush=True)\nwhile True: pass"


@pytest.fixture
def child(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"."
        yield process
        process.kill()


def await_run(child: subprocess.Popen[bytes]) -> None:
    """Return when a child has run since: what it had written before is not counted."""
    assert child.stdout is not None
    os.read(child.stdout.fileno(), 1 << 20)
    assert child.stdout.read(1) == b"."


@pytest.mark.parametrize("child", [WAKING], indirect=True)
def test_process_that_wakes_by_its_timer_is_not_frozen(child: subprocess.Popen[bytes]) -> None:
    standstill = FrozenProcesses()
    for _ in range(4 * CHECKS_MAX):
        assert standstill.frozen([child.pid]) == []
        await_run(child)


@pytest.mark.parametrize("child", [BUSY], indirect=True)
def test_process_that_computes_without_a_pause_is_not_frozen(
    child: subprocess.Popen[bytes],
) -> None:
    standstill = FrozenProcesses()
    assert not any(standstill.frozen([child.pid]) for _ in range(20 * CHECKS_MAX))


@pytest.mark.parametrize("child", [WAKING, BUSY], indirect=True)
def test_stopped_process_is_frozen_after_looks_in_a_row(child: subprocess.Popen[bytes]) -> None:
    standstill = FrozenProcesses()
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: _state(child.pid) == "T")
    found = [standstill.frozen([child.pid]) for _ in range(1 + CHECKS_MAX)]
    assert found == [[]] * CHECKS_MAX + [[child.pid]]


@pytest.mark.parametrize("child", [WAKING], indirect=True)
def test_process_that_goes_on_is_counted_anew(child: subprocess.Popen[bytes]) -> None:
    """As after a machine was suspended: the watcher has missed its looks as well."""
    standstill = FrozenProcesses()
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: _state(child.pid) == "T")
    for _ in range(CHECKS_MAX):
        assert standstill.frozen([child.pid]) == []
    os.kill(child.pid, signal.SIGCONT)
    for _ in range(CHECKS_MAX):
        await_run(child)
        assert standstill.frozen([child.pid]) == []


def test_process_that_has_ended_is_not_frozen() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    standstill = FrozenProcesses()
    assert not any(standstill.frozen([child.pid]) for _ in range(2 * CHECKS_MAX))


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0]
