"""Agents that mean harm, beside healthy ones: hanging, 10 MB, a byte a second, a private redirect,
100 MB compressed to 100 kB.

Goal: healthy workflows succeed as before, hostile ones fail with the right reason, and the memory
of the process that dispatches stays bounded. The times of healthy workflows with and without the
hostile ones are printed, not judged.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.contract.conftest import Caller
from tests.contract.conftest import client as patient_client
from tests.faults.checks import check
from tests.faults.load import Load
from tests.faults.market_load import chain
from tests.faults.victims import await_one
from tests.platform.deployments import RunningDeployment

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
GROWTH_MAX = 150 * MIB
HEALTHY = 150
# Before the hostile ones come: nothing is judged of these but that they succeed.
BEFORE = 40
NODES_AT_ONCE = 20
# Those that never end are given up soon; the others have the time that a busy machine needs.
TIMEOUT_MS = {"hang": 2_000, "slow": 2_000, "huge": 60_000, "redirect": 60_000, "bomb": 60_000}
# What some node of a workflow must end with. Others may end otherwise: an agent with twenty replies
# of 10 MB in the making is slow, and one whose circuit is open is not even asked.
REASONS = {
    "hang": {"AGENT_TIMEOUT"},
    "slow": {"AGENT_TIMEOUT"},
    "huge": {"RESULT_TOO_LARGE"},
    "redirect": {"INVALID_REPLY"},
    "bomb": {"RESULT_TOO_LARGE"},
}
OTHERWISE = {"AGENT_TIMEOUT", "AGENT_UNAVAILABLE", "NO_CANDIDATE", "UPSTREAM_FAILED"}


def hostile(manner: str) -> dict[str, Any]:
    """Return a manifest of nodes side by side, all of which meet this manner."""
    node = {
        "capabilityId": f"cap.{manner}.v1",
        "payload": {"manner": manner},
        "timeoutMs": TIMEOUT_MS[manner],
        "maxRetries": 1,
    }
    return {"intent": manner, "nodes": {f"n{number}": node for number in range(NODES_AT_ONCE)}}


def healthy_times(load: Load, count: int) -> list[float]:
    """Run healthy workflows one after the other and return how long each took, in ms, sorted."""
    times = []
    with load.client() as client:
        for _ in range(count):
            began = time.perf_counter()
            reply = client.post(
                "/v1/workflows/publish", json=chain(), headers={"Prefer": "wait=60"}, timeout=90.0
            )
            times.append((time.perf_counter() - began) * 1_000)
            assert reply.json()["status"] == "success", reply.text
    return sorted(times)


@contextmanager
def peak_memory(pid: int) -> Iterator[list[int]]:
    """Look at a process's memory all the time; the one item of the list is its highest, bytes."""
    process = psutil.Process(pid)
    highest = [process.memory_info().rss]
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            highest[0] = max(highest[0], process.memory_info().rss)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield highest
    finally:
        ended.set()
        thread.join()


def test_hostile_agents_harm_nobody_else(victim: RunningDeployment, tmp_path: Path) -> None:
    load = Load(victim, tmp_path, clients=0)
    load.start()
    try:
        for index, manner in enumerate(REASONS):
            load.add_agent(f"did:fault:{manner}{index}", f"cap.{manner}.v1")
        healthy_times(load, BEFORE)  # warm
        before = healthy_times(load, BEFORE)
        owner = await_one(victim, "workflows")
        began_rss = psutil.Process(owner).memory_info().rss
        with (
            peak_memory(owner) as highest,
            load.client() as client,
            patient_client(victim.url, victim.admin_key) as patient,
        ):
            waiting = Caller("", victim.admin_key, "", patient)
            ids = {
                client.post("/v1/workflows/publish", json=hostile(manner)).json()[
                    "workflowId"
                ]: manner
                for manner in REASONS
                for _ in range(2)
            }
            beside = healthy_times(load, HEALTHY)
            records = {
                workflow_id: waiting.finished(f"/v1/workflows/{workflow_id}") for workflow_id in ids
            }
        growth = highest[0] - began_rss
        sys.stdout.write(
            f"healthy p50 {before[BEFORE // 2]:.1f} ms, longest {before[-1]:.1f} ms alone;"
            f" {beside[HEALTHY // 2]:.1f} and {beside[-1]:.1f} ms beside hostile agents;"
            f" memory +{growth / MIB:.0f} MiB\n"
        )
        for workflow_id, manner in ids.items():
            record = records[workflow_id]
            assert record["status"] == "failed", record
            codes = {node["error"]["code"] for node in record["nodes"].values() if node["error"]}
            assert codes & REASONS[manner], (manner, codes)
            assert codes <= REASONS[manner] | OTHERWISE, (manner, codes)
        assert growth < GROWTH_MAX, f"{growth / MIB:.0f} MiB"
        check(load, victim)
    finally:
        load.stop()
