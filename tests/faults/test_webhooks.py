"""Nothing that is due to a webhook is lost when the timekeeper is killed."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import httpx
import psycopg
import pytest

from tests.contract.conftest import answer
from tests.contract.stub_agent import stub_agent
from tests.faults.victims import kill, superuser_url, wait
from tests.platform.deployments import RunningDeployment
from tests.platform.webhook_receiver import webhook_receiver

pytestmark = pytest.mark.slow

Json = dict[str, Any]
WORKFLOWS, TURNS = 30, 3


def test_every_event_arrives_in_the_order_of_its_workflow_with_the_timekeeper_killed(
    victim: RunningDeployment,
) -> None:
    """Some are refused once: the next of their workflow waits for them, also after a kill."""
    draw = random.Random(13)
    did = f"did:net:hooked-{draw.getrandbits(64):x}"
    capability = f"cap.test.hooked-{draw.getrandbits(64):x}.v1"
    with (
        httpx.Client(base_url=victim.url, headers={"x-api-key": victim.admin_key}) as admin,
        psycopg.connect(superuser_url(victim), autocommit=True) as rows,
        stub_agent() as agent,
        webhook_receiver() as receiver,
    ):
        offers = [{"id": capability, "description": "d", "price_cents": 1}]
        card = {"did": did, "endpoint": agent.url, "version": 1, "capabilities": offers}
        answer(admin.post("/v1/agents/register", json={"acard": card}))
        answer(admin.post("/v1/ledger/deposit", json={"amount": 100}))
        answer(admin.post("/v1/stakes", json={"agentDid": did, "amount": 10}))
        body = {"url": f"{receiver.url}/x", "events": ["workflow.published", "node.succeeded"]}
        hook = answer(admin.post("/v1/webhooks", json=body))["id"]
        nodes = {"a": {"capabilityId": capability}}
        nodes |= {"b": {"capabilityId": capability, "dependsOn": ["a"]}}
        pid = None
        for _ in range(TURNS):
            receiver.refused["/x"] = 5
            many = {"workflows": [{"nodes": nodes}] * WORKFLOWS}
            answer(admin.post("/v1/workflows/publish/bulk", json=many))
            seen = len(receiver.messages)
            target = seen + draw.randrange(WORKFLOWS)
            wait(lambda: len(receiver.messages) > target, "deliveries that are under way")  # noqa: B023
            pid = kill(victim, "timekeeper", after=pid)
        undelivered = (
            "SELECT count(*) FROM callboard.event_delivery"
            " WHERE target_id = %s AND status <> 'delivered'"
        )
        count = WORKFLOWS * TURNS
        wait(
            lambda: (
                len({one.id for one in receiver.messages}) == 3 * count
                and rows.execute(undelivered, [hook]).fetchone() == (0,)
            ),
            lambda: f"{len(receiver.messages)} messages",
        )
        ids = rows.execute(
            "SELECT audit_id, workflow_id::text FROM callboard.event_delivery"
            " WHERE target_id = %s", [hook],
        ).fetchall()  # fmt: skip
        workflow_of = dict(ids)
        assert {one.audit_id for one in receiver.messages} == set(workflow_of)
        lines = defaultdict[str, list[int]](list)
        for message in receiver.messages:
            lines[workflow_of[message.audit_id]].append(message.audit_id)
        assert len(lines) == count
        for line in lines.values():  # a repeat comes before the next one
            assert line == sorted(line)
