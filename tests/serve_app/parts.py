"""Parts of a replica that tests run by themselves: its services, one call, one request."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

from core.settings import Settings
from core.trust.deployment_keys import DeploymentKeys
from serve_app.callers.admission import Admission
from serve_app.callers.client_address import ClientAddresses
from serve_app.callers.limits import RateLimiter
from serve_app.http.calls import Call, Operation
from serve_app.http.endpoint import Endpoint
from serve_app.services import Services

PARTS = (
    "authenticator",
    "limiter",
    "heartbeats",
    "replies",
    "receipts",
    "webhooks",
    "peer_store",
    "peer_reader",
    "peer_client",
    "admission",
    "client_addresses",
)


def gateway_with(settings: Settings, **parts: Any) -> Any:
    """Return a gateway of which only the settings and these parts are used."""
    return SimpleNamespace(settings=settings, **parts)


def services_of(gateway: Any, **parts: Any) -> Services:
    """Return services with these parts; a test that uses another part fails."""
    return Services(gateway, **{**dict.fromkeys(PARTS), **parts})


def call_of(services: Any = None, **members: Any) -> Call:
    """Return a call with these members; the others are those of an empty GET of `/`."""
    usual = {
        "method": "GET",
        "path_texts": {},
        "headers": {},
        "query_string": b"",
        "raw_path": b"/",
        "request_id": "r",
    }
    return Call(services=cast(Services, services), **{**usual, **members})


def endpoint_of(
    operations: Iterable[Operation], path: str, gateway: Any, authenticator: Any
) -> Endpoint:
    """Return the endpoint of a path, whose callers the authenticator knows.

    They must be unlimited: their calls are not counted.
    """
    settings = gateway.settings
    services = services_of(
        gateway,
        authenticator=authenticator,
        limiter=RateLimiter(settings, cast(Any, None)),
        admission=Admission(settings),
        client_addresses=ClientAddresses(DeploymentKeys()),
    )
    return Endpoint([one for one in operations if one.path == path], services)


async def request(
    endpoint: Endpoint, method: str, path: str, body: bytes = b"", **scope: Any
) -> tuple[int, bytes]:
    """Send a request to an endpoint; return the status and the body of the reply.

    Args:
        scope: members of the ASGI scope beside method, path and the headers of JSON.
    """
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    usual = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": ("192.0.2.1", 1),
    }
    await endpoint({**usual, **scope}, receive, send)
    return sent[0]["status"], b"".join(message["body"] for message in sent[1:])
