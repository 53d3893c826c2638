"""Requests that travel packed arrive as what they were made of."""

from __future__ import annotations

import pickle

from actors.transport.messages import PackedPublish, PublishRequest, request_bytes
from core.records.manifest import parse_manifest
from core.settings import Settings
from core.workflow.dag import WorkflowLimits, compile_workflow
from tests.simulation.shapes import compiled


def test_a_packed_request_arrives_as_the_request() -> None:
    settings = Settings()
    limits = WorkflowLimits(
        nodes_max=settings.nodes_max,
        timeout_ms_default=settings.node_timeout_ms,
        max_retries_default=settings.max_retries,
        max_runtime_ms_default=settings.max_runtime_ms,
        max_runtime_ms_max=settings.max_runtime_ms_max,
    )
    manifest = parse_manifest({"nodes": {"a": {"capabilityId": "cap.a.v1"}}})
    request = PublishRequest(
        command_key="k",
        request_hash=b"",
        actor_did="did:net:p",
        workflow_id="0199c0de-0000-7000-8000-000000000001",
        task_id="0199c0de-0000-7000-8000-000000000002",
        payer_did="did:net:p",
        manifest_json="{}",
        compiled=compile_workflow(manifest, limits),
    )
    packed = PackedPublish(request)
    assert packed.workflow_id == request.workflow_id
    assert pickle.loads(pickle.dumps([packed, packed])) == [request, request]


def test_requests_weigh_about_what_they_travel_as() -> None:
    """A batch is bounded by it, so that its other end makes values of it within one short turn."""
    nodes = {f"n{number}": {"capabilityId": "cap.test.v1"} for number in range(100)}
    shape = compiled({"nodes": nodes})
    request = PublishRequest(
        command_key="k",
        request_hash=b"",
        actor_did="did:a",
        workflow_id="w",
        task_id="t",
        payer_did="did:p",
        manifest_json=shape.manifest_json,
        compiled=shape.compiled,
    )
    size = len(pickle.dumps(request))
    assert size <= request_bytes(request) <= 6 * size
    assert size <= request_bytes(PackedPublish(request)) <= 1.1 * size
