"""An agent over HTTP, and an agent as a process. Reference: features.md (Agent interface)."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from callboard import Agent, Context
from callboard.kit.context import Later
from callboard.kit.serving import BODY_BYTES_MAX, serving
from core.trust.signing import sign_body
from tests.callboard.scripted_service import Scripted, ScriptedService

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
from callboard import Agent
agent = Agent("did:net:p", signing_secret="s3cret")
@agent.capability("cap.text.upper.v1", price_cents=3)
def upper(text: str):
    return {"text": text.upper()}
agent.run(UNTIL)
"""


def test_the_interface_of_the_specification_is_served() -> None:
    agent = Agent("did:net:a", "A", service="pact", signing_secret="s")

    @agent.capability("cap.echo.v1")
    def echo(context: Context) -> dict[str, Any]:
        return {"key": context.idempotency_key}

    async def visit() -> list[tuple[int, Any]]:
        body = json.dumps({"eventId": "e", "capabilityId": "cap.echo.v1"}).encode()
        signed = {"x-pact-signature": sign_body(body, "s"), "Idempotency-Key": "k"}
        async with (
            serving(agent) as url,
            httpx.AsyncClient(base_url=url, trust_env=False) as http,
        ):
            answers = [
                await http.get("/health"),
                await http.get("/.well-known/acard.json"),
                await http.post("/pact/node", content=body, headers=signed),
                await http.post("/pact/node", content=body),
                await http.post("/pact/cancel", content=body),
            ]
            assert answers[1].json()["endpoint"] == url
            return [(answer.status_code, answer.json()) for answer in answers]

    health, card, node, unsigned, cancel = asyncio.run(visit())
    assert health == (200, {"status": "healthy", "did": "did:net:a"})
    assert (card[0], card[1]["did"]) == (200, "did:net:a")
    assert (node[0], node[1]["status"], node[1]["result"]) == (200, "success", {"key": "k"})
    assert unsigned[0] == 401
    assert cancel[0] == 401


def start(source: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", source],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.mark.slow
def test_run_registers_then_says_ready_and_ends_by_sigterm(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"ok": True, "did": "did:net:p", "registered": 1})]
    source = PROGRAM.replace("UNTIL", "")
    with start(source, CALLBOARD_URL=service.url, CALLBOARD_API_KEY="k") as process:
        assert process.stdout is not None
        did, _, _, url, capability = process.stdout.readline().split()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert (did, capability) == ("did:net:p", "(cap.text.upper.v1)")
    (asked,) = service.asked
    assert asked.target == "/v1/agents/register"
    assert asked.headers["x-api-key"] == "k"
    assert asked.body["signingSecret"] == "s3cret"
    assert asked.body["acard"]["endpoint"] == url


def an_agent() -> Agent:
    agent = Agent("did:net:p")

    @agent.capability("cap.x.v1")
    def x() -> dict[str, Any]:
        return {}

    return agent


def failed_run(capsys: pytest.CaptureFixture[str], agent: Agent, **how: Any) -> tuple[object, str]:
    """Return the exit code and the line on standard error of an agent that cannot be set up."""
    with pytest.raises(SystemExit) as ended:
        agent.run(**how)
    (line,) = capsys.readouterr().err.splitlines()
    return ended.value.code, line


def test_run_without_a_deployment_ends_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("CALLBOARD_URL", "CALLBOARD_API_KEY", "CALLBOARD_DID_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    code, line = failed_run(capsys, an_agent())
    assert (code, "NO_DEPLOYMENT" in line, "--home" in line) == (3, True, True)


def test_run_ends_with_the_sentence_of_a_refusal_or_of_a_wrong_card(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CALLBOARD_URL", service.url)
    monkeypatch.setenv("CALLBOARD_API_KEY", "k")
    service.script = [Scripted(403, {"code": "FORBIDDEN", "detail": "it is not yours"})]
    expected = "callboard: agent did:net:p: FORBIDDEN: it is not yours"
    assert failed_run(capsys, an_agent()) == (3, expected)
    code, line = failed_run(capsys, an_agent(), endpoint="nowhere")
    assert (code, "card: endpoint: got 'nowhere', expected an http" in line) == (2, True)


@pytest.mark.parametrize(("api_key", "is_signed"), [(None, True), ("k", False)])
async def test_an_agent_without_another_credential_signs_with_its_own_key(
    service: ScriptedService, monkeypatch: pytest.MonkeyPatch, api_key: str | None, is_signed: bool
) -> None:
    monkeypatch.setenv("CALLBOARD_URL", service.url)
    monkeypatch.delenv("CALLBOARD_DID_KEY", raising=False)
    if api_key is None:
        monkeypatch.delenv("CALLBOARD_API_KEY", raising=False)
    else:
        monkeypatch.setenv("CALLBOARD_API_KEY", api_key)
    service.script = [Scripted(200, {"success": True, "duplicate": False})]
    agent = Agent("did:net:p", private_key=base64.b64encode(b"s" * 32).decode())
    later = Later("e", "w", "a", "r")

    await agent.deliver(later, {"x": 1})
    await agent.close()
    (asked,) = service.asked
    assert ('keyid="did:net:p"' in asked.headers.get("signature-input", "")) is is_signed
    assert asked.headers.get("x-api-key") == api_key


@pytest.mark.slow
def test_run_until_eof_ends_with_its_starter() -> None:
    source = PROGRAM.replace("UNTIL", "register=False, until_eof=True")
    with start(source) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_reply_under_way_is_sent_while_the_server_closes() -> None:
    agent = Agent("did:net:a")
    entered, leave = asyncio.Event(), asyncio.Event()

    @agent.capability("cap.slow.v1")
    async def slow() -> dict[str, Any]:
        entered.set()
        await leave.wait()
        return {"is_done": True}

    async def visit() -> httpx.Response:
        body = {"eventId": "e", "capabilityId": "cap.slow.v1"}
        async with httpx.AsyncClient(trust_env=False) as http:
            async with serving(agent) as url:
                asked = asyncio.create_task(http.post(f"{url}/callboard/node", json=body))
                await entered.wait()
                asyncio.get_running_loop().call_soon(leave.set)
            return await asked

    response = asyncio.run(visit())
    assert response.json()["result"] == {"is_done": True}


def test_closing_does_not_wait_for_a_client_that_takes_nothing() -> None:
    agent = Agent("did:net:a")
    entered = asyncio.Event()

    @agent.capability("cap.large.v1")
    async def large() -> dict[str, Any]:
        entered.set()
        return {"text": "x" * (7 << 20)}

    async def visit() -> None:
        body = b'{"eventId": "e", "capabilityId": "cap.large.v1"}'
        head = b"POST /callboard/node HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.socket() as deaf:
            async with asyncio.timeout(60), serving(agent) as url:
                deaf.connect(("127.0.0.1", int(url.rpartition(":")[2])))
                deaf.sendall(head + body)
                await entered.wait()

    asyncio.run(visit())


def test_a_body_that_is_too_large_is_refused() -> None:
    async def visit() -> tuple[int, str]:
        async with (
            serving(an_agent()) as url,
            httpx.AsyncClient(base_url=url, trust_env=False) as http,
        ):
            response = await http.post("/callboard/node", content=b"x" * (BODY_BYTES_MAX + 1))
            return response.status_code, response.headers["connection"]

    assert asyncio.run(visit()) == (413, "close")
