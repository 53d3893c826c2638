"""One agent and two machines: its `maxConcurrency` holds over both, and one may have all of it.

Method: a raylet beside the head's, with an owner of its own, and an agent that answers nothing
until it may. Workflows are published until each of the two members drives some.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from core.shards.shard import shard_of
from tests.faults.raylets import add_machine
from tests.faults.victims import find_all, superuser_url, wait
from tests.faults.waiting_agent import WaitingAgent
from tests.platform.deployments import RunningDeployment, deployed

pytestmark = [pytest.mark.slow, pytest.mark.soak]

MACHINES, LIMIT, WIDTH = 2, 4, 8
# A member near the replica is preferred until it has some 30 workflows more than another.
WORKFLOWS_MAX = 100
CAPABILITY = "cap.test.shared.v1"
CARD = {
    "did": "did:test:shared", "name": "shared", "version": 1, "maxConcurrency": LIMIT,
    "capabilities": [{"id": CAPABILITY, "description": "waits", "price_cents": 1}],
}  # fmt: skip


@pytest.fixture
def pair(short_folder: Path) -> Iterator[RunningDeployment]:
    """A deployment over two raylets."""
    with deployed(short_folder) as running:
        add_machine(running)
        wait(lambda: len(find_all(running, "workflows")) == MACHINES, "an owner on both machines")
        wait(lambda: len(holders(running)) == MACHINES, "both to hold shards")
        yield running


def holders(deployment: RunningDeployment) -> dict[str, set[int]]:
    """Return by member the shards that it holds."""
    found: dict[str, set[int]] = {}
    with psycopg.connect(superuser_url(deployment)) as connection:
        for shard, member in connection.execute("SELECT id, member FROM callboard.shard"):
            found.setdefault(member, set()).add(shard)
    return found


def wide() -> dict[str, Any]:
    """Return a manifest of nodes that may all run at once."""
    node = {"capabilityId": CAPABILITY, "payload": {}, "timeoutMs": 600_000}
    nodes = {f"n{number}": node for number in range(WIDTH)}
    return {"intent": "wide", "settings": {"maxBudgetCredits": 1}, "nodes": nodes}


def publish(client: httpx.Client) -> str:
    """Publish a wide workflow and return its id."""
    reply = client.post("/v1/workflows/publish", json=wide()).raise_for_status()
    return str(reply.json()["workflowId"])


def test_agent_has_never_more_calls_than_it_takes_from_two_machines(
    pair: RunningDeployment,
) -> None:
    headers = {"x-api-key": pair.admin_key}
    with (
        WaitingAgent() as agent,
        httpx.Client(base_url=pair.url, headers=headers, timeout=30.0) as client,
    ):
        card = CARD | {"endpoint": agent.url}
        client.post("/v1/agents/register", json={"acard": card}).raise_for_status()
        client.post("/v1/ledger/deposit", json={"amount": 1_000}).raise_for_status()
        workflows = [publish(client)]
        wait(lambda: agent.open_now == LIMIT, "one member to have all of the agent")
        while not all(
            shards.intersection(map(shard_of, workflows)) for shards in holders(pair).values()
        ):
            assert len(workflows) < WORKFLOWS_MAX, holders(pair)
            workflows.append(publish(client))
        agent.may_answer.set()

        def statuses() -> set[str]:
            replies = [client.get(f"/v1/workflows/{one}").json() for one in workflows]
            return {str(reply["status"]) for reply in replies}

        wait(lambda: statuses() == {"success"}, "the ends of all workflows")
        assert agent.open_max == LIMIT
        assert len(agent.calls) == WIDTH * len(workflows)
