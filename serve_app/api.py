"""The API put together: every operation under its path, in a FastAPI application.

FastAPI hosts the routes; the requests themselves go past its dependency and response machinery, and
past its middleware (`serve_app/endpoint.py` says why). Every failure is answered by the endpoints.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI
from starlette.routing import Route, Router

from core.errors import ErrorCode, ServiceError
from serve_app.calls import Operation
from serve_app.endpoint import Endpoint, Receive, Scope, Send, refused, request_id_of, send_reply
from serve_app.paths import kept_apart, path_text
from serve_app.routes import (
    accounts,
    agents,
    auctions,
    audit,
    disputes,
    feedback,
    health,
    heartbeats,
    invoices,
    keys,
    ledger,
    node_results,
    prices,
    quotas,
    results,
    stakes,
    tasks,
    trust,
    workflows,
)
from serve_app.services import Services


class Api(FastAPI):
    """A FastAPI application whose requests go straight to its router."""

    def build_middleware_stack(self) -> Router:
        """Return the router itself: the endpoints answer every failure, no layer has work left."""
        return self.router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route a request; a slash within a value of its path parts nothing."""
        await super().__call__(kept_apart(scope), receive, send)


def service_version() -> str:
    """Return the installed version, "unreleased" when run from a source tree alone."""
    try:
        return version("callboard")
    except PackageNotFoundError:
        return "unreleased"


def all_operations() -> tuple[Operation, ...]:
    """Return every operation of the service, the busiest first."""
    described = (
        *results.OPERATIONS,  # before the workflows, whose paths match everything below theirs
        *workflows.OPERATIONS,
        *node_results.OPERATIONS,
        *ledger.OPERATIONS,
        *agents.OPERATIONS,
        *heartbeats.OPERATIONS,
        *audit.OPERATIONS,
        *keys.OPERATIONS,
        *accounts.OPERATIONS,
        *prices.OPERATIONS,
        *invoices.OPERATIONS,
        *disputes.OPERATIONS,
        *feedback.OPERATIONS,
        *tasks.OPERATIONS,
        *stakes.OPERATIONS,
        *quotas.OPERATIONS,
        *auctions.OPERATIONS,
        *trust.OPERATIONS,
    )
    return (*described, *health.operations(service_version(), described))


def create_api(services: Services) -> Api:
    """Build the application of one replica.

    Args:
        services: its connections.
    """
    api = Api(openapi_url=None, docs_url=None, redoc_url=None)
    by_path: dict[str, list[Operation]] = {}
    for operation in all_operations():
        by_path.setdefault(operation.path, []).append(operation)
    api.router.routes[:] = [
        Route(path, Endpoint(operations, services)) for path, operations in by_path.items()
    ]
    api.router.redirect_slashes = False
    api.router.default = _unknown_path
    return api


async def _unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        await send({"type": "websocket.close", "code": 1000})
        return
    request_id = request_id_of(dict(scope["headers"]))
    error = ServiceError(ErrorCode.NOT_FOUND, f"there is no path {path_text(scope)[:200]}")
    await send_reply(send, refused(error, request_id, 1), [])
