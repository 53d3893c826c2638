"""Builds the bodies and headers of dispatches and of cancel notices.

The functions are pure. Reference: features.md (Dispatch, Dispatch signatures, Cancellation).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.ports import DispatchOrder
from core.ids import event_id, span_id, work_key
from core.json_text import Raw, write_json
from core.timestamps import iso_ms
from core.trust.deployment_keys import DeploymentKeys
from core.trust.signing import sign_body
from core.trust.tokens import result_id
from core.workflow.traces import trace_of

PROTOCOL_VERSION = "0.4"


def sent_event_id(order: DispatchOrder) -> str:
    """Return the `eventId` of an order; for a verification it ends with `#verify`."""
    event = event_id(order.workflow_id, order.node, order.attempt)
    return event + "#verify" if order.is_verification else event


def idempotency_key(order: DispatchOrder) -> str:
    """Return the `Idempotency-Key`, which marks repeated work for the agent. Decision dispatch."""
    work = f"verify {order.attempt}" if order.is_verification else f"{order.rejected}"
    return work_key(order.workflow_id, order.node, order.agent_did, work)


def dispatch_body(
    order: DispatchOrder,
    event: str,
    inputs: bytes,
    parents: Mapping[str, Any],
    started_ms: int,
    keys: DeploymentKeys,
) -> bytes:
    """Return the body of a dispatch.

    Some members of the JSON object appear under two names, because agents read different names.

    Args:
        event: the id from `sent_event_id`.
        inputs: the inputs in canonical form, as they were hashed.
        parents: the results of the parents, as values or JSON texts.
        started_ms: the time of the dispatch, Unix milliseconds.
        keys: the deployment's keys, from which the `resultId` is derived.
    """
    fragment = Raw(inputs)
    token = result_id(
        keys,
        order.workflow_id,
        order.node,
        order.verify_attempt or order.attempt,
        is_verification=order.is_verification,
        key_version=order.key_version,
    )
    version = order.capability_version
    return write_json(
        {
            "eventId": event,
            "timestamp": iso_ms(started_ms),
            "workflowId": order.workflow_id,
            "taskId": order.task_id,
            "nodeId": order.node,
            "attempt": order.attempt,
            "agentDid": order.agent_did,
            "capabilityId": order.capability_id,
            "capability": order.capability_id,
            **({"capabilityVersion": version} if version else {}),
            "inputs": fragment,
            "input": fragment,
            "parents": parents,
            "resultId": token,
            "meta": {"deadline": iso_ms(started_ms + order.timeout_ms)},
        }
    )


def dispatch_headers(order: DispatchOrder, event: str, body: bytes, service: str) -> dict[str, str]:
    """Return the headers of a dispatch, with a signature when the agent has a secret."""
    prefix = f"x-{service}"
    number, kind = order.attempt, "primary"
    if order.is_verification:
        number, kind = order.verify_attempt, "verify"
    span = span_id(order.workflow_id, order.node, number, kind)
    trace = trace_of(order.workflow_id, order.traceparent)
    headers = {
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
        "Idempotency-Key": idempotency_key(order),
        f"{prefix}-event": "node.dispatch",
        f"{prefix}-event-id": event,
        f"{prefix}-workflow-id": order.workflow_id,
        f"{prefix}-node-id": header_text(order.node),
        f"{prefix}-protocol-version": PROTOCOL_VERSION,
        "traceparent": trace.traceparent(span),
    }
    if order.secret is not None:
        headers[f"{prefix}-signature"] = sign_body(body, order.secret)
    return headers


def cancel_notice(order: DispatchOrder, reason: str, service: str) -> tuple[bytes, dict[str, str]]:
    """Return the body and headers of a cancel notice, with the `eventId` of the dispatch."""
    body = write_json(
        {
            "eventId": sent_event_id(order),
            "workflowId": order.workflow_id,
            "nodeId": order.node,
            "reason": reason,
        }
    )
    headers = {"Content-Type": "application/json", f"x-{service}-event": "node.cancel"}
    if order.secret is not None:
        headers[f"x-{service}-signature"] = sign_body(body, order.secret)
    return body, headers


def header_text(value: str) -> str:
    """Return a node name as a header value, with characters outside ASCII escaped."""
    return value.encode("ascii", "backslashreplace").decode()
