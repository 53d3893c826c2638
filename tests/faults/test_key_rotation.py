"""A deployment's key is rotated while it runs, and its rotation is killed in between.

Goal: a token that was handed out before is good until its attempt ends, signed dispatches go on,
and what only the ended key could read is worthless. Method: one deployment, the real command line.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from core.trust.deployment_keys import DeploymentKeys
from core.trust.signing import sign_body
from tests.contract.conftest import _keep_replies, answer, client, refusal, wait
from tests.contract.stub_agent import StubAgent, stub_agent
from tests.platform.deployments import RunningDeployment, deployed

__all__ = ["_keep_replies"]

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.takes(4)]

Json = dict[str, Any]
DID, CAPABILITY, SECRET = "did:net:rotated", "cap.test.rotated.v1", "planted-hush"
COMMAND = [sys.executable, "-m", "callboard.cli", "rotate-deployment-key"]


@pytest.fixture
def deployment(short_folder: Path) -> Iterator[RunningDeployment]:
    """A deployment of its own."""
    with deployed(short_folder) as running:
        yield running


@pytest.fixture
def http(deployment: RunningDeployment) -> Iterator[httpx.Client]:
    """A client of its administrator."""
    with client(deployment.url, deployment.admin_key) as http:
        answer(http.post("/v1/ledger/deposit", json={"amount": 100}))
        yield http


def rotate(deployment: RunningDeployment, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "--home", str(deployment.home), *flags]
    return subprocess.run(command, cwd=deployment.code, capture_output=True, text=True, timeout=400)


def rotate_and_kill(deployment: RunningDeployment, at: str) -> None:
    """Begin a rotation and kill it, and what it has started, at a line that it says."""
    command = [*COMMAND, "--home", str(deployment.home)]
    with subprocess.Popen(
        command, cwd=deployment.code, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as begun:
        assert begun.stdout is not None
        assert any(at in line for line in begun.stdout), f"it never said {at!r}"
        os.killpg(begun.pid, signal.SIGKILL)


def register(http: httpx.Client, url: str) -> str:
    """Register the agent and return the token of its heartbeats."""
    card = {"did": DID, "endpoint": url, "version": 1}
    body = {"acard": {**card, "capabilities": [{"id": CAPABILITY}]}, "signingSecret": SECRET}
    made = answer(http.post("/v1/agents/register", json=body, headers={"Idempotency-Key": url}))
    return str(made["heartbeatToken"])


def dispatched(http: httpx.Client, agent: StubAgent) -> Json:
    """Publish a node and return its dispatch, signed with the agent's secret."""
    node = {"capabilityId": CAPABILITY, "timeoutMs": 600_000}
    answer(http.post("/v1/workflows/publish", json={"nodes": {"a": node}}))
    agent.wait_dispatched()
    sent = agent.dispatches[-1]
    signature = agent.headers[-1]["x-callboard-signature"]
    assert signature == sign_body(orjson.dumps(sent), SECRET)
    return sent


def hand_in(http: httpx.Client, sent: Json) -> httpx.Response:
    body = {name: sent[name] for name in ("workflowId", "nodeId", "resultId")}
    return http.post("/v1/workflows/nodeResult", json={**body, "status": "success", "result": {}})


def beat(deployment: RunningDeployment, token: str) -> httpx.Response:
    with client(deployment.url, token) as http:
        return http.post(f"/v1/agents/{DID}/heartbeat", json={"status": "healthy"})


def test_a_rotation_loses_nothing_wherever_it_is_killed(
    deployment: RunningDeployment, http: httpx.Client
) -> None:
    file = deployment.home / "deployment.key"
    first = DeploymentKeys.parse(file.read_text(encoding="ascii"))
    with stub_agent(lambda sent: (202, {"ok": True})) as agent:
        token = register(http, agent.url)
        before = [dispatched(http, agent) for _ in range(3)]
        for said in ("(1, 2)", "replacing the ledger", "(2, 1)"):
            rotate_and_kill(deployment, said)
            wait(lambda: http.get("/health").status_code == 200, "a healthy service")
        assert answer(hand_in(http, before[0]))["status"] == "success"
        done = rotate(deployment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "0 signing secrets are left" in done.stdout
        keys = DeploymentKeys.parse(file.read_text(encoding="ascii"))
        assert keys.versions == (2, 1)
        assert keys.key(1) == first.key(1)

        assert answer(hand_in(http, before[1]))["status"] == "success"
        after = dispatched(http, agent)
        assert answer(hand_in(http, after))["status"] == "success"
        assert beat(deployment, token).status_code == 200

        refused = rotate(deployment, "--end")
        assert refused.returncode == 1
        assert "1 open attempts" in refused.stderr
        assert "replies" in refused.stderr
        ended = rotate(deployment, "--end", "--force")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        refusal(hand_in(http, before[2]), 401, "UNAUTHORIZED")
        assert beat(deployment, token).status_code == 401
        assert beat(deployment, register(http, agent.url + "/")).status_code == 200
        assert answer(hand_in(http, dispatched(http, agent)))["status"] == "success"
    assert_addresses_are_told_apart(deployment)
    for key in (first.key(1), keys.key(2)):
        assert key is not None
        for log in (deployment.home / "logs").iterdir():
            text = log.read_bytes()
            assert key.hex().encode() not in text, log
            assert SECRET.encode() not in text, log


def assert_addresses_are_told_apart(deployment: RunningDeployment) -> None:
    """HAProxy has the new key's token: with an unknown one all addresses were one."""
    left = []
    for address in ("127.0.0.2", "127.0.0.2", "127.0.0.3"):
        transport = httpx.HTTPTransport(local_address=address)
        with client(deployment.url, transport=transport) as anonymous:
            reply = anonymous.get("/v1/agents?limit=1")
            left.append(int(reply.headers["x-ratelimit-remaining"]))
    assert left[1] == left[0] - 1
    assert left[2] == left[0]
