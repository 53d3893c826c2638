"""Both clients against a service on loopback."""

from __future__ import annotations

import asyncio
import socket

import pytest

from callboard import AsyncClient, CallboardError, Client
from tests.callboard.scripted_service import Scripted, ScriptedService


def test_publish_sends_the_manifest_and_the_key(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"workflowId": "w", "taskId": "t", "status": "pending"})]
    with Client(service.url, "secret") as client:
        reply = client.publish({"nodes": {"a": {}}}, wait_s=5)
    assert reply["workflowId"] == "w"
    (asked,) = service.asked
    assert (asked.method, asked.target) == ("POST", "/v1/workflows/publish")
    assert asked.body == {"nodes": {"a": {}}}
    assert asked.headers["x-api-key"] == "secret"
    assert asked.headers["prefer"] == "wait=5"


def test_publish_survives_a_busy_service_with_one_key(service: ScriptedService) -> None:
    busy = Scripted(503, {"code": "OVERLOADED"}, {"Retry-After": "0"})
    service.script = [busy, Scripted(200, {"workflowId": "w"})]
    with Client(service.url) as client:
        assert client.publish({})["workflowId"] == "w"
    keys = [asked.headers["idempotency-key"] for asked in service.asked]
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_the_asynchronous_client_does_the_same(service: ScriptedService) -> None:
    busy = Scripted(503, {"code": "OVERLOADED"}, {"Retry-After": "0"})
    service.script = [busy, Scripted(200, {"workflowId": "w"})]

    async def publish() -> dict[str, object]:
        async with AsyncClient(service.url, "secret") as client:
            return await client.publish({})

    assert asyncio.run(publish()) == {"workflowId": "w"}
    assert len({asked.headers["idempotency-key"] for asked in service.asked}) == 1


def test_list_filters_travel_as_query(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"workflows": []})]
    with Client(service.url) as client:
        client.workflows(status="failed", limit=2)
    assert service.asked[0].target == "/v1/workflows?status=failed&limit=2"


def test_a_refusal_names_code_status_and_request(service: ScriptedService) -> None:
    problem = {"code": "NOT_FOUND", "detail": "no such workflow", "requestId": "req-9"}
    service.script = [Scripted(404, problem)]
    with Client(service.url) as client, pytest.raises(CallboardError) as refused:
        client.workflow("w")
    assert (refused.value.code, refused.value.status) == ("NOT_FOUND", 404)
    assert refused.value.request_id == "req-9"


def test_a_reply_that_is_no_json_is_an_error(service: ScriptedService) -> None:
    service.script = [Scripted(200, "<html>")]
    with Client(service.url) as client, pytest.raises(CallboardError) as refused:
        client.balance()
    assert refused.value.code == "HTTP_200"


def test_health_is_read_also_while_a_part_is_down(service: ScriptedService) -> None:
    service.script = [Scripted(503, {"status": "unhealthy"})]
    with Client(service.url) as client:
        assert client.health() == {"status": "unhealthy"}


@pytest.mark.slow  # all retries of a refused connection, 3 s
def test_no_service_is_the_same_error_with_status_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(CallboardError) as refused:
        client.balance()
    assert (refused.value.code, refused.value.status) == ("UNREACHABLE", 0)
    assert str(port) in refused.value.detail
