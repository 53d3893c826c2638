"""Health of the deployment, readiness of this replica, and the API's own description.

Spec: Versioning 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.json_text import write_json
from core.records.api.operators.keys import Health, Readiness, Start
from core.records.api.shape import Kind
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Handler, Operation, Reply
from serve_app.openapi.docs_page import DOCS_POLICY, docs_page
from serve_app.openapi.document import openapi_document

WORKFLOW_SPEC_VERSION = "0.4"
SETTLEMENT_SPEC_VERSION = "0.1"


def operations(version: str, described: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return the operations of this file.

    Args:
        version: the service's version.
        described: all other operations, for the description.
    """

    async def health(call: Call) -> Reply:
        components = await call.services.gateway.components()
        is_healthy = all(state == "healthy" for state in components.values())
        body = {
            "status": "healthy" if is_healthy else "unhealthy",
            "version": version,
            "components": components,
            "workflowSpecVersion": WORKFLOW_SPEC_VERSION,
            "settlementSpecVersion": SETTLEMENT_SPEC_VERSION,
        }
        return Reply(body, status=200 if is_healthy else 503)

    async def ready(call: Call) -> Reply:
        # What a load balancer needs: this replica can serve. A part that restarts elsewhere in the
        # cluster is `/health`'s word; taking every replica out for it would help no client.
        is_ready = await call.services.gateway.is_ready()
        body = {"status": "ready" if is_ready else "not ready", "version": version}
        return Reply(body, status=200 if is_ready else 503)

    async def start(call: Call) -> Reply:
        links = {name: f"/{name}" for name in ("docs", "health", "ready")}
        service = call.services.settings.service
        return Reply({"service": service, "version": version, "openapi": "/openapi.json", **links})

    here = (
        _operation("/", start, "List the entry points of the service", Start),
        _operation("/health", health, "Return the health of the deployment", Health),
        _operation("/ready", ready, "Return whether this replica serves requests", Readiness),
        _operation("/openapi.json", _static(b"", ""), "Return the OpenAPI document", _DOCUMENT),
        _operation("/docs", _static(b"", ""), "Show the documentation page", _PAGE, "text/html"),
    )
    document = openapi_document([*described, *here], version)
    return (
        *here[:3],
        _operation(
            "/openapi.json",
            _static(write_json(document), "application/json"),
            "Return the OpenAPI document",
            _DOCUMENT,
        ),
        _operation(
            "/docs",
            _static(
                docs_page(document),
                "text/html; charset=utf-8",
                (b"content-security-policy", DOCS_POLICY.encode()),
            ),
            "Show the documentation page",
            _PAGE,
            "text/html",
        ),
    )


_DOCUMENT = Kind({"type": "object", "description": "an OpenAPI 3.1 document"})
_PAGE = Kind({"type": "string"})


def _static(body: bytes, content_type: str, *headers: tuple[bytes, bytes]) -> Handler:
    async def answer(call: Call) -> Reply:
        return Reply(body, headers=headers, content_type=content_type.encode())

    return answer


def _operation(
    path: str, handler: Handler, summary: str, reply: Any, media_type: str = "application/json"
) -> Operation:
    return Operation(
        method="GET",
        path=path,
        handler=handler,
        summary=summary,
        scope=None,
        rate=RateClass.EXEMPT,
        tag="service",
        reply=reply,
        is_health=reply in (Health, Readiness),
        media_type=media_type,
    )
