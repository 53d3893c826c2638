"""Agents that answer later."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from callboard import Agent, Client, Later
from callboard.kit.serving import serving

BODY = {"eventId": "e1", "capabilityId": "cap.slow.v1", "workflowId": "w", "nodeId": "n"}


def slow_agent(kept: list[Later]) -> Agent:
    agent = Agent("did:net:slow", "Slow")

    @agent.capability("cap.slow.v1")
    def slow(later: Later, text: str = "") -> Later:
        kept.append(later)
        return later

    return agent


def ask(agent: Agent, **members: Any) -> tuple[int, Any]:
    answer = asyncio.run(agent.answer(json.dumps({**BODY, **members}).encode(), None))
    return answer.status, json.loads(answer.body)


def test_a_handler_that_returns_its_later_is_answered_with_202() -> None:
    kept: list[Later] = []
    reply = ask(slow_agent(kept), resultId="r")
    assert reply == (202, {"ok": True, "eventId": "e1"})
    assert kept == [Later("e1", "w", "n", "r")]


def test_a_later_can_be_kept_as_json() -> None:
    later = Later("e1", "w", "n", "r")
    assert Later.from_json(json.loads(json.dumps(later.to_json()))) == later


def test_a_dispatch_without_a_result_id_cannot_be_answered_later() -> None:
    status, reply = ask(slow_agent([]))
    assert (status, reply["status"]) == (400, "error")
    assert "resultId" in reply["error"]


class Coordinator:
    """Takes every result, and counts the connections that they come on."""

    def __init__(self) -> None:
        self.opened = 0
        self.open = 0
        self.taken = 0
        self.none_open = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what comes on one connection until the other side closes it."""
        self.opened += 1
        self.open += 1
        self.none_open.clear()
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode().lower().split("\r\n")
                (length,) = (line[16:] for line in lines if line.startswith("content-length: "))
                await reader.readexactly(int(length))
                self.taken += 1
                body = b'{"success":true,"status":"success"}'
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        self.open -= 1
        if not self.open:
            self.none_open.set()


async def test_served_agent_delivers_on_one_connection_until_it_closes() -> None:
    """Each result made an HTTP client of its own, at 22 to 55 ms of CPU."""
    coordinator, agent = Coordinator(), slow_agent([])
    server = await asyncio.start_server(coordinator.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(60), server:
        async with serving(agent):
            for number in range(3):
                taken = await agent.deliver(Later("e", "w", "n", f"r{number}"), {}, url=url)
                assert taken["status"] == "success"
            assert (coordinator.opened, coordinator.open) == (1, 1)
        await coordinator.none_open.wait()
        await agent.deliver(Later("e", "w", "n", "r3"), {}, url=url)
        await coordinator.none_open.wait()
        assert (coordinator.opened, coordinator.taken) == (2, 4)
        async with serving(agent):
            await agent.deliver(Later("e", "w", "n", "r4"), {}, url=url)
        await coordinator.none_open.wait()


async def test_served_agent_delivers_from_a_handlers_own_loop() -> None:
    """Connections belong to the loop that has opened them."""
    coordinator, agent = Coordinator(), slow_agent([])
    server = await asyncio.start_server(coordinator.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def handler() -> str:
        delivery = agent.deliver(Later("e", "w", "n", "r"), {}, url=url)
        return str(asyncio.run(delivery)["status"])

    async with asyncio.timeout(60), server, serving(agent):
        await agent.deliver(Later("e", "w", "n", "r0"), {}, url=url)
        assert await asyncio.to_thread(handler) == "success"
        await agent.deliver(Later("e", "w", "n", "r1"), {}, url=url)
        assert coordinator.opened == 2


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"result": {"n": 1}}, {"status": "success", "result": {"n": 1}}),
        ({}, {"status": "success", "result": {}}),
        (
            {"error": "no luck", "code": "E1"},
            {"status": "error", "error": "no luck", "code": "E1"},
        ),
    ],
)
def test_a_result_or_an_error_is_handed_in(given: dict[str, Any], sent: dict[str, Any]) -> None:
    call = next(Client.node_result("w", "n", "r", agent_did="did:net:slow", **given))
    assert (call.method, call.path) == ("POST", "/v1/workflows/nodeResult")
    ids = {"workflowId": "w", "nodeId": "n", "resultId": "r", "agentDid": "did:net:slow"}
    assert call.body == {**ids, **sent}
    assert call.repeatable
