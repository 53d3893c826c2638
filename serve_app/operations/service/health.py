"""The health of the deployment, the readiness of this replica, and the API's description.

Reference: http.md (Versions).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from core.json_text import write_json
from core.records.api.operators import Health, Readiness, Start
from core.records.api.shape import Kind
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Json, Operation, Operations, Reply
from serve_app.openapi.docs_page import DOCS_POLICY, docs_page
from serve_app.openapi.document import openapi_document

WORKFLOW_SPEC_VERSION = "0.4"
SETTLEMENT_SPEC_VERSION = "0.1"

_DOCUMENT = Kind({"type": "object", "description": "an OpenAPI 3.1 document"})
_PAGE = Kind({"type": "string"})


def operations(version: str, described: Sequence[Operation]) -> Operations:
    """Return the operations of this module.

    Args:
        version: the service's version.
        described: all other operations, for the OpenAPI document.
    """
    here = Operations("service")
    get = partial(here.add, "GET", scope=None, rate=RateClass.EXEMPT)

    @get("/", reply=Start)
    async def start(call: Call) -> Json:
        """List the entry points of the service."""
        links = {name: f"/{name}" for name in ("docs", "health", "ready")}
        service = call.services.settings.service
        return {"service": service, "version": version, "openapi": "/openapi.json", **links}

    @get("/health", reply=Health, is_health=True)
    async def health(call: Call) -> Reply:
        """Return the health of the deployment."""
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

    @get("/ready", reply=Readiness, is_health=True)
    async def ready(call: Call) -> Reply:
        """Return whether this replica serves requests."""
        # Load balancers read this reply. It covers only this replica. `/health` also covers
        # processes on other machines. If such a process restarts, a load balancer must not remove
        # all replicas.
        is_ready = await call.services.gateway.is_ready()
        body = {"status": "ready" if is_ready else "not ready", "version": version}
        return Reply(body, status=200 if is_ready else 503)

    @get("/openapi.json", reply=_DOCUMENT)
    async def description(call: Call) -> Reply:
        """Return the OpenAPI document."""
        return Reply(document_text)

    @get("/docs", reply=_PAGE, media_type="text/html")
    async def docs(call: Call) -> Reply:
        """Show the documentation page."""
        policy = (b"content-security-policy", DOCS_POLICY.encode())
        return Reply(page, headers=(policy,), content_type=b"text/html; charset=utf-8")

    document = openapi_document([*described, *here], version)
    document_text, page = write_json(document), docs_page(document)
    return here
