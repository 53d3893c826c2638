"""The ASGI application: all operations by path, with Starlette's router.

No framework wraps the router. `serve_app/http/endpoint.py` does what all operations share,
including error handling. Decisions: `http-edge`, `requests-json-and-client`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pkgutil import walk_packages

from starlette.routing import Route, Router

from core.errors import ErrorCode, ServiceError
from serve_app import operations
from serve_app.http.calls import Operation
from serve_app.http.endpoint import (
    Endpoint,
    Receive,
    Scope,
    Send,
    refused,
    request_id_of,
    send_reply,
)
from serve_app.http.paths import path_text, routed
from serve_app.operations.service import health
from serve_app.operations.work import workflows
from serve_app.services import Services


class Api:
    """The ASGI application of one replica.

    Paths without parameters are looked up in a dict, because Starlette's router tries every pattern
    in turn, which takes a tenth of the time of a small request. The router finds the other paths.

    Args:
        routes: one route per path.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self.router = Router(routes, redirect_slashes=False, default=_unknown_path)
        self._fixed = {route.path: route.app for route in routes if not route.param_convertors}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route a request. `routed` first hides encoded slashes, which separate no segments."""
        scope = routed(scope)
        fixed = self._fixed.get(scope["path"]) if scope["type"] == "http" else None
        await (fixed or self.router)(scope, receive, send)


def service_version() -> str:
    """Return the installed version, "unreleased" if the package is not installed."""
    try:
        return version("callboard")
    except PackageNotFoundError:
        return "unreleased"


def all_operations() -> tuple[Operation, ...]:
    """Return all operations that the modules of `operations` declare, workflow operations first.

    The router tries the routes in this order, and requests for workflows are the most frequent.
    """
    found = walk_packages(operations.__path__, f"{operations.__name__}.")
    names = sorted((one.name for one in found), key=lambda name: name != workflows.__name__)
    declared = [one for name in names for one in getattr(import_module(name), "OPERATIONS", ())]
    return (*declared, *health.operations(service_version(), declared))


def create_api(services: Services) -> Api:
    """Build the application of one replica.

    Args:
        services: the replica's connections, stores and caches.
    """
    by_path: dict[str, list[Operation]] = {}
    for operation in all_operations():
        by_path.setdefault(operation.path, []).append(operation)
    return Api([Route(path, Endpoint(of_path, services)) for path, of_path in by_path.items()])


async def _unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        await send({"type": "websocket.close", "code": 1000})
        return
    request_id = request_id_of(dict(scope["headers"]))
    error = ServiceError(ErrorCode.NOT_FOUND, f"there is no path {path_text(scope)[:200]}")
    await send_reply(send, refused(error, request_id), [])
