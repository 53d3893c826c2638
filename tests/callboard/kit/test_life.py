"""An agent's life: context, tokens, signatures, heartbeats, and its end by a signal."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from nacl.signing import SigningKey

from callboard import Agent, Context, Later
from callboard.kit.dispatch_replies import Answer
from core.jcs import jcs
from core.trust.signatures import is_signed_by, result_message
from tests.callboard.scripted_service import Scripted, ScriptedService

KEY = base64.b64encode(b"k" * 32).decode()
PUBLIC_KEY = base64.b64encode(bytes(SigningKey(b"k" * 32).verify_key)).decode()


def dispatch(event_id: str = "e1", **members: Any) -> bytes:
    sent = {
        "eventId": event_id,
        "capabilityId": "cap.x.v1",
        "workflowId": "w",
        "taskId": "t",
        "nodeId": "a",
        "attempt": 2,
        "resultId": f"r-{event_id}",
    }
    return json.dumps({**sent, **members}).encode()


def reply(answer: Answer) -> Any:
    return json.loads(answer.body)


def test_a_handler_that_asks_for_it_gets_its_context() -> None:
    agent, seen = Agent("did:net:a"), []

    @agent.capability("cap.x.v1")
    def x(context: Context) -> dict[str, Any]:
        seen.append(context)
        return {}

    meta = {"deadline": "2030-01-01T00:00:00.000Z", "hint": 1}
    traceparent = f"00-{'a' * 32}-{'b' * 16}-01"
    asyncio.run(agent.answer(dispatch(meta=meta), None, traceparent))
    (context,) = seen
    assert (context.event_id, context.capability_id) == ("e1", "cap.x.v1")
    assert (context.workflow_id, context.task_id, context.node_id) == ("w", "t", "a")
    assert context.attempt == 2
    assert context.deadline == datetime(2030, 1, 1, tzinfo=UTC)
    assert context.left_s is not None
    assert context.trace_id == "a" * 32
    assert context.meta == {"hint": 1}


@pytest.mark.parametrize("deadline", [None, "soon", 5, "2030-01-01T00:00:00"])
def test_a_deadline_that_is_no_time_is_none(deadline: Any) -> None:
    agent, seen = Agent("did:net:a"), []

    @agent.capability("cap.x.v1")
    def x(context: Context) -> dict[str, Any]:
        seen.append((context.deadline, context.left_s, context.trace_id))
        return {}

    asyncio.run(agent.answer(dispatch(meta={"deadline": deadline}), None))
    assert seen == [(None, None, None)]


def test_reported_tokens_are_in_the_metrics() -> None:
    agent = Agent("did:net:a")

    @agent.capability("cap.x.v1")
    def x(context: Context) -> dict[str, Any]:
        context.report_tokens(read=10, written=5)
        context.report_tokens(written=2)
        return {}

    metrics = reply(asyncio.run(agent.answer(dispatch(), None)))["metrics"]
    assert metrics.pop("latency_ms") >= 0
    assert metrics == {"input_tokens": 10, "output_tokens": 7, "tokens_used": 17}


@pytest.mark.parametrize(
    "result", [{"n": 1.0, "é": [None]}, {"at": datetime(2030, 1, 1, tzinfo=UTC)}]
)
def test_an_agent_with_a_key_signs_what_it_sends(result: Any) -> None:
    agent = Agent("did:net:a", private_key=f"ed25519:{KEY}")
    agent.capability("cap.x.v1")(lambda: result)
    sent = reply(asyncio.run(agent.answer(dispatch(), None)))
    result_hash = "sha256:" + hashlib.sha256(jcs(sent["result"])).hexdigest()
    message = result_message("a", "w", result_hash)
    assert sent["publicKey"] == PUBLIC_KEY
    assert is_signed_by(PUBLIC_KEY, message, sent["signature"])
    assert agent.card("http://h").to_json()["publicKey"] == PUBLIC_KEY
    assert KEY not in repr(agent.signer)


def test_an_agent_without_a_key_signs_nothing() -> None:
    agent = Agent("did:net:a")
    agent.capability("cap.x.v1")(lambda: {"n": 1})
    assert "signature" not in reply(asyncio.run(agent.answer(dispatch(), None)))


def test_a_key_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="32"):
        Agent("did:net:a", private_key="c2hvcnQ=")


def test_a_delivered_result_is_signed(service: ScriptedService) -> None:
    agent = Agent("did:net:a", private_key=KEY)
    service.script = [Scripted(200, {"success": True})]
    asyncio.run(agent.deliver(Later("e", "w", "a", "r"), {"n": 1}, url=service.url))
    body = service.asked[0].body
    message = result_message("a", "w", "sha256:" + hashlib.sha256(b'{"n":1}').hexdigest())
    assert is_signed_by(body["publicKey"], message, body["signature"])


async def test_a_draining_agent_refuses_new_work_and_finishes_what_runs() -> None:
    agent = Agent("did:net:a")

    entered, leave = asyncio.Event(), asyncio.Event()

    @agent.capability("cap.x.v1")
    async def x() -> dict[str, Any]:
        entered.set()
        await leave.wait()
        return {"done": True}

    running = asyncio.create_task(agent.answer(dispatch(), None))
    await entered.wait()
    agent.drain()
    drained = asyncio.create_task(agent.drained(60))
    refused = await agent.answer(dispatch("e2"), None)
    repeated = asyncio.create_task(agent.answer(dispatch(), None))
    assert not drained.done()
    leave.set()
    await drained
    (refused, finished, repeated) = refused, await running, await repeated
    assert (refused.status, reply(refused)["code"]) == (503, "DRAINING")
    assert refused.retry_after_s is not None
    assert (finished.status, finished) == (200, repeated)


async def test_a_draining_agent_waits_for_what_it_will_deliver_later(
    service: ScriptedService,
) -> None:
    agent = Agent("did:net:a")
    kept: list[Later] = []

    @agent.capability("cap.x.v1")
    def x(later: Later) -> Later:
        kept.append(later)
        return later

    await agent.answer(dispatch(), None)
    agent.drain()
    await agent.drained(0)
    assert agent.statistics().in_flight == 1, "the time was over first"
    drained = asyncio.create_task(agent.drained(60))
    service.script = [Scripted(200, {"success": True})]
    await agent.deliver(kept[0], {}, url=service.url)
    await drained
    assert agent.statistics().in_flight == 0


PROGRAM = """
import asyncio
from callboard import Agent
agent = Agent("did:net:p")
@agent.capability("cap.x.v1")
async def x() -> dict:
    print("at work", flush=True)
    while not agent.is_draining:
        await asyncio.sleep(0.01)
    return {"done": True}
agent.run(OPTIONS)
"""
REGISTERED = Scripted(200, {"ok": True, "success": True, "did": "did:net:p", "registered": 1,
                            "heartbeatToken": "token"})  # fmt: skip
TAKEN = Scripted(200, {"ok": True, "ack": True})


@pytest.mark.slow
@pytest.mark.parametrize("deregister", [False, True])
def test_sigterm_drains_the_agent_and_tells_the_coordinator(
    service: ScriptedService, deregister: bool
) -> None:
    service.script = [REGISTERED, TAKEN, TAKEN, TAKEN]
    options = f"deregister={deregister}, heartbeat_period_s=3600"
    environment = {**os.environ, "CALLBOARD_URL": service.url, "CALLBOARD_API_KEY": "k"}
    command = [sys.executable, "-c", PROGRAM.replace("OPTIONS", options)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process,
        httpx.Client(trust_env=False, timeout=60) as http,
    ):
        assert process.stdout is not None
        url = process.stdout.readline().split()[3]

        async def ask() -> httpx.Response:
            asked = asyncio.create_task(
                asyncio.to_thread(http.post, f"{url}/callboard/node", content=dispatch())
            )
            assert process.stdout is not None
            await asyncio.to_thread(process.stdout.readline)
            process.send_signal(signal.SIGTERM)
            return await asked

        answered = asyncio.run(ask())
        assert process.wait(60) == 0
    assert (answered.status_code, answered.json()["result"]) == (200, {"done": True})
    beats = [asked for asked in service.asked if asked.target.endswith("/heartbeat")]
    assert all(asked.headers["authorization"] == "Bearer token" for asked in beats)
    told = [asked.body["status"] for asked in beats]
    last = service.asked[-1]
    if deregister:
        assert told == ["healthy", "draining"]
        assert (last.method, last.target) == ("DELETE", "/v1/agents/did:net:p")
    else:
        assert told == ["healthy", "draining", "stopped"]


@pytest.mark.slow
def test_a_coordinator_that_has_gone_does_not_keep_an_agent_from_ending(
    service: ScriptedService,
) -> None:
    service.script = [REGISTERED]
    environment = {**os.environ, "CALLBOARD_URL": service.url, "CALLBOARD_API_KEY": "k"}
    command = [sys.executable, "-c", PROGRAM.replace("OPTIONS", "")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "heartbeat of did:net:p failed" in said
