"""Orders to agents, and the agents that serve them, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from actors.ports import DispatchOrder, InputSources
from core.canonical import canonical
from core.records.manifest import parse_manifest
from core.workflow.dag import compile_workflow

WORKFLOW = "0198c0de-0000-7000-8000-000000000001"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def order_to(address: str, **fields: Any) -> DispatchOrder:
    """Return an order to the agent at an address; `fields` replace its members."""
    values: dict[str, Any] = {
        "workflow_id": WORKFLOW,
        "task_id": "t",
        "node": "a",
        "attempt": 1,
        "capability_id": "cap.x.v1",
        "agent_did": "did:x:a",
        "url": f"{address}/node",
        "cancel_url": f"{address}/cancel",
        "secret": None,
        "timeout_ms": 60_000,
        "sources": sources_of(),
    }
    return DispatchOrder(**{**values, **fields})


@asynccontextmanager
async def serving(handlers: Mapping[str, Handler]) -> AsyncIterator[str]:
    """Serve handlers by their paths, for every method; yield the address."""
    application = web.Application(client_max_size=64 * 1024 * 1024)
    for path, handler in handlers.items():
        application.router.add_route("*", path, handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def sources_of(
    payload: Mapping[str, Any] | None = None,
    parents: Mapping[str, Any] | None = None,
    mappings: Mapping[str, str] | None = None,
) -> InputSources:
    """Return what the inputs of a node are made of.

    Args:
        payload: the node's.
        parents: the result of each of its parents, by name.
        mappings: the expression of each mapped input, by name.
    """
    results = parents or {}
    last = {
        "capabilityId": "cap.x.v1",
        "dependsOn": list(results),
        "payload": payload or {},
        "inputMappings": mappings or {},
    }
    nodes = {name: {"capabilityId": "cap.x.v1"} for name in results} | {"a": last}
    compiled = compile_workflow(parse_manifest({"nodes": nodes}))
    texts = {name: canonical(result).decode() for name, result in results.items()}
    return InputSources(compiled.nodes["a"], texts)
