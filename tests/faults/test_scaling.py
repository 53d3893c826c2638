"""A cluster that grows with its load and shrinks without it: 1, 3, 1 machines.

Goal: Ray's autoscaler is asked for what waiting work needs; a machine that is not needed gives its
work away before Ray ends there; nothing is lost or called twice on the way.
Method: Ray's autoscaler (v2) with its provider of fake machines, which are raylets of this machine,
beside a deployment; workflows that wait for an agent until they are told to end, and others that
run without pause all the time.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import ray.autoscaler.v2.monitor
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

from serve_app.supervisor.deployment import run_folder_of
from tests.faults.checks import check
from tests.faults.fake_machines import JoinedMachines
from tests.faults.load import Load
from tests.faults.victims import await_one, find_all, wait
from tests.faults.waiting_agent import WaitingAgent
from tests.platform.deployments import RunningDeployment, deployed

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.takes(10)]

MACHINES = 3
WAITING = 30
CAPABILITY = "cap.test.wait.v1"
PROGRESS = 10
# As many as a machine should have at most: the waiting ones need all machines, the others one.
WORKFLOWS_PER_MACHINE = 10
PROVIDER = {
    "type": "external",
    "module": f"{JoinedMachines.__module__}.{JoinedMachines.__qualname__}",
    "launch_multiple": True,
    "disable_node_updaters": True,
    "disable_launch_config_check": True,
    "head_node_id": FAKE_HEAD_NODE_ID,
}
CONFIG = {
    "cluster_name": "callboard-test",
    "max_workers": MACHINES - 1,
    "idle_timeout_minutes": 0.1,
    "upscaling_speed": 10.0,
    "head_node_type": "ray.head.default",
    "available_node_types": {
        "ray.head.default": {
            "resources": {"CPU": 2, "callboard_machine": 1}, "node_config": {}, "max_workers": 0
        },
        "worker": {
            "resources": {
                "CPU": 2, "callboard_machine": 1, "object_store_memory": 80 * 1024 * 1024
            },
            "node_config": {}, "min_workers": 0, "max_workers": MACHINES - 1,
        },
    },
    "auth": {"ssh_user": "nobody"},
    "file_mounts": {},
    "cluster_synced_files": [],
    "file_mounts_sync_continuously": False,
    "setup_commands": [],
    "initialization_commands": [],
    "head_setup_commands": [],
    "worker_setup_commands": [],
    "head_start_ray_commands": [],
    "worker_start_ray_commands": [],
}  # fmt: skip


@pytest.fixture
def scaled(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningDeployment]:
    """A deployment whose number of machines follows its load."""
    settings = (
        f"machines_max = {MACHINES}\nworkflows_per_machine = {WORKFLOWS_PER_MACHINE}\n"
        "machine_idle_ms = 3000\n"
    )
    # By which the autoscaler knows the head; KubeRay gives each pod such a name.
    monkeypatch.setenv("RAY_CLOUD_INSTANCE_ID", FAKE_HEAD_NODE_ID)
    monkeypatch.setenv("RAY_NODE_TYPE_NAME", "ray.head.default")
    monkeypatch.setenv("RAY_enable_autoscaler_v2", "1")
    with deployed(short_folder, settings) as running, autoscaler(running):
        yield running


@contextmanager
def autoscaler(deployment: RunningDeployment) -> Iterator[None]:
    """Run Ray's autoscaler beside a deployment; what it has started ends with the deployment."""
    environment = psutil.Process(await_one(deployment, "raylet")).environ()
    config = deployment.home / "autoscaler.json"
    address = environment["RAY_ADDRESS"]
    own = CONFIG | {"provider": PROVIDER | {"gcs_address": address}}
    config.write_text(json.dumps(own), encoding="utf-8")
    command = [sys.executable, ray.autoscaler.v2.monitor.__file__, f"--gcs-address={address}"]
    command += [f"--autoscaling-config={config}", "--monitor-ip=127.0.0.1"]
    command += [f"--logs-dir={deployment.home / 'logs'}"]
    extra = {"RAY_FAKE_CLUSTER": "1"}
    with (deployment.home / "logs" / "autoscaler.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment | extra, cwd=run_folder_of(deployment.home), stdout=log,
            stderr=log,
        )  # fmt: skip
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def publish_waiting(load: Load, agent: WaitingAgent) -> list[str]:
    """Publish the workflows that wait for this agent; return their ids."""
    card = {
        "did": "did:test:waiting", "name": "waits", "endpoint": agent.url, "version": 1,
        "capabilities": [{"id": CAPABILITY, "description": "waits", "price_cents": 1}],
        "maxConcurrency": WAITING,
    }  # fmt: skip
    manifest = {
        "intent": "wait",
        "settings": {"maxBudgetCredits": 1},
        "nodes": {"a": {"capabilityId": CAPABILITY, "payload": {}, "timeoutMs": 600_000}},
    }
    with load.client() as client:
        client.post("/v1/agents/register", json={"acard": card}).raise_for_status()
        replies = [client.post("/v1/workflows/publish", json=manifest) for _ in range(WAITING)]
        return [str(reply.raise_for_status().json()["workflowId"]) for reply in replies]


def statuses(load: Load, workflow_ids: list[str]) -> Counter[str]:
    """Return how many of these workflows have which status."""
    with load.client() as client:
        replies = [client.get(f"/v1/workflows/{one}").json() for one in workflow_ids]
    return Counter(str(reply["status"]) for reply in replies)


def test_machines_follow_the_load_up_and_down(scaled: RunningDeployment, tmp_path: Path) -> None:
    load = Load(scaled, tmp_path, clients=1, pause_s=0.2)
    load.start()

    def machines() -> tuple[int, int]:
        """Return how many raylets and how many owners there are."""
        return len(find_all(scaled, "raylet")), len(find_all(scaled, "workflows"))

    def seen() -> str:
        log = (scaled.home / "logs" / "autoscaler.log").read_text(errors="replace")[-1_500:]
        return f"the right number of machines; raylets and owners: {machines()}\n{log}"

    try:
        with WaitingAgent() as agent:
            load.wait_progress(PROGRESS)
            assert machines() == (1, 1)
            waiting = publish_waiting(load, agent)
            wait(lambda: machines() == (MACHINES, MACHINES), seen)
            load.wait_progress(PROGRESS)
            assert set(statuses(load, waiting)) <= {"pending", "running"}
            agent.may_answer.set()
            wait(lambda: machines() == (1, 1), seen)
            load.wait_progress(PROGRESS)
            assert statuses(load, waiting) == Counter(success=WAITING)
            # Moved to the new machines with their calls open: none was made again.
            assert set(agent.calls.values()) == {1}
        check(load, scaled)
        # None in the place of each that left; on a busy machine one start may be repeated.
        log = (scaled.home / "logs" / "monitor.log").read_text(encoding="utf-8")
        assert sum(int(n) for n in re.findall(r"Launching (\d+) nodes", log)) <= MACHINES
    finally:
        load.stop()
