"""The ledger's process or its machine is lost: the standby of another machine takes the head.

Goal: nothing accepted is lost, nothing is paid twice, and commits go on within seconds. Method:
three raylets on this machine; a "machine" is a raylet with all of its processes. Run with
`pytest -s` it prints the time from the fault to the next ledger's first commit, and until no shard
is the lost member's; the times are bounded by how busy this machine is and are not asserted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.faults.checks import check
from tests.faults.load import Load
from tests.faults.raylets import add_machine
from tests.faults.victims import find_all, superuser_url, wait
from tests.platform.deployments import RunningDeployment, deployed

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.takes(10)]

MACHINES = 3
PROGRESS = 40
POLL_S = 0.02
# Moves the ledger to a machine that is not the head's, if it is not on one, waits for its standby
# on yet another, and prints the process ids of both.
_PLACE = """
import asyncio
import sys
import time

sys.path.insert(0, sys.argv[1])
import ray
from ray.exceptions import RayError
from actors.cluster.ledgers.ledger_handover import hand_over_ledger
from actors.cluster.ledgers.ledger_slots import existing_ledgers
from actors.transport.names import NAMESPACE
from serve_app.settings_from_env import read_settings

ray.init(namespace=NAMESPACE, log_to_driver=False)
nodes = [one for one in ray.nodes() if one["Alive"]]
head = next(one["NodeID"] for one in nodes if "node:__internal_head__" in one["Resources"])
others = sorted(one["NodeID"] for one in nodes if one["NodeID"] != head)

def pings():
    found = []
    for handle in existing_ledgers().values():
        try:
            found.append((ray.get(handle.ping.remote(), timeout=5), handle))
        except RayError:
            pass
    return found

deadline = time.monotonic() + 150
while time.monotonic() < deadline:
    found = pings()
    writer = next((pair for pair in found if pair[0]["isWriter"]), None)
    standby = next((pair for pair in found if not pair[0]["isWriter"]), None)
    if writer is not None and writer[0]["machine"] == head:
        asyncio.run(hand_over_ledger(read_settings(), machine=others[0]))
    elif writer is not None and standby is not None and standby[0]["isStandby"]:
        print(*(ray.get(pair[1].process_id.remote()) for pair in (writer, standby)))
        break
    time.sleep(0.2)
"""


@pytest.fixture(scope="module")
def victim(short_folder: Path) -> Iterator[RunningDeployment]:
    """A deployment that spreads its dispatches, over three raylets with an owner each."""
    with deployed(short_folder, 'dispatch = "spread"\n') as running:
        for _ in range(MACHINES - 1):
            add_machine(running)
        await_owners(running)
        yield running


def await_owners(deployment: RunningDeployment) -> None:
    """Return when every machine has its owner."""
    wait(lambda: len(find_all(deployment, "workflows")) == MACHINES, "an owner on every machine")


def ledger_and_standby(deployment: RunningDeployment) -> tuple[int, int]:
    """Return the process ids of the ledger, beside which no GCS runs, and of its standby."""
    raylet = min(find_all(deployment, "raylet"), key=_started_s)
    command = [sys.executable, "-c", _PLACE, str(deployment.code)]
    done = subprocess.run(
        command, env=psutil.Process(raylet).environ(), cwd=Path("/"),
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    assert done.stdout, "there was no standby in time"
    writer, standby = done.stdout.split()
    return int(writer), int(standby)


def machine_of(deployment: RunningDeployment, pid: int) -> list[int]:
    """Return the raylet that a process belongs to, and all processes below it."""
    raylets = set(find_all(deployment, "raylet"))
    raylet = next(one for one in psutil.Process(pid).parents() if one.pid in raylets)
    return [raylet.pid, *(child.pid for child in raylet.children(recursive=True))]


@pytest.fixture
def head(victim: RunningDeployment) -> Iterator[psycopg.Connection[tuple[int, int]]]:
    """A connection that reads the head."""
    with psycopg.connect(superuser_url(victim), autocommit=True) as connection:
        yield connection


def await_next_commit(
    head: psycopg.Connection[tuple[int, int]], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Return when a ledger of a later epoch has committed; print how long that took."""
    query = "SELECT epoch, audit_seq FROM callboard.head"
    began_s = time.monotonic()
    found = head.execute(query).fetchone()
    assert found is not None
    epoch, taken_s, audit_id = found[0], None, 0

    def has_committed() -> bool:
        nonlocal taken_s, audit_id
        row = head.execute(query).fetchone()
        assert row is not None
        if row[0] > epoch and taken_s is None:
            taken_s, audit_id = time.monotonic() - began_s, row[1]
        return taken_s is not None and row[1] > audit_id

    while not has_committed():
        assert time.monotonic() < began_s + 120, f"no ledger after {what}"
        time.sleep(POLL_S)
    took_s = time.monotonic() - began_s
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{what}: head taken after {taken_s:.2f} s, first commit after {took_s:.2f} s,"
            f" load {os.getloadavg()[0]:.0f}"
        )


def _started_s(pid: int) -> float:
    return psutil.Process(pid).create_time()


def test_standby_takes_the_head_when_the_ledgers_process_is_killed(
    victim: RunningDeployment,
    load: Load,
    head: psycopg.Connection[tuple[int, int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Or its actor's next process does, which Ray starts: whichever is quicker."""
    load.wait_progress(PROGRESS)
    writer, _ = ledger_and_standby(victim)
    os.kill(writer, signal.SIGKILL)
    await_next_commit(head, "a killed ledger", capsys)
    load.wait_progress(PROGRESS)
    check(load, victim)


@pytest.mark.parametrize("is_frozen", [True, False], ids=["frozen", "killed"])
def test_standby_takes_the_head_of_a_machine_that_is_lost(
    is_frozen: bool,
    victim: RunningDeployment,
    load: Load,
    head: psycopg.Connection[tuple[int, int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The owner of that machine is lost as well: its shards are taken from the new ledger."""
    load.wait_progress(PROGRESS)
    writer, _ = ledger_and_standby(victim)
    machine = machine_of(victim, writer)
    (owner,) = set(machine) & set(find_all(victim, "workflows"))
    what = "a frozen machine" if is_frozen else "a killed machine"
    began_s = time.monotonic()
    held = dict(head.execute("SELECT member, count(*) FROM callboard.shard GROUP BY 1").fetchall())
    for pid in machine:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP if is_frozen else signal.SIGKILL)
    try:
        await_next_commit(head, what, capsys)
        moved = "SELECT count(DISTINCT member) FROM callboard.shard"
        wait(lambda: _one(head, moved) < len(held), "its shards to be taken")
        with capsys.disabled():
            took_s = time.monotonic() - began_s
            print(f"{what}: no shard is its owner's after {took_s:.2f} s")  # noqa: T201
        load.wait_progress(PROGRESS)
    finally:
        for pid in machine:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    wait(lambda: owner not in find_all(victim, "workflows"), "the end of its owner")
    add_machine(victim)
    wait(lambda: len(find_all(victim, "raylet")) == MACHINES, "the machine in its place")
    await_owners(victim)
    load.wait_progress(PROGRESS)
    check(load, victim)


def _one(head: psycopg.Connection[tuple[int, int]], query: str) -> int:
    row = head.execute(query).fetchone()
    assert row is not None
    return row[0]
