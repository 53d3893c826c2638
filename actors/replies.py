"""What the reply to an order means as an event, whichever way it came: as a response or later.

Pure. Spec: Dispatch response; contract.md section 5.
"""

from __future__ import annotations

from typing import Any

from actors.ports import DispatchOrder
from core.canonical import canonical, hash_bytes
from core.errors import NodeErrorCode
from core.workflow.events import (
    AttemptAccepted,
    AttemptFailed,
    AttemptSucceeded,
    Event,
    Failure,
    VerificationFinished,
)
from core.workflow.verdict import Accepted, Success, is_approved


def event_of(
    order: DispatchOrder,
    reply: Success | Accepted | Failure,
    input_hash: str,
    started_ms: int,
    at_ms: int,
) -> Event:
    """Return the event of a judged reply.

    Args:
        input_hash: over the inputs that were sent.
        started_ms: when the request was written.
        at_ms: when the reply was complete.
    """
    if isinstance(reply, Accepted):
        return AttemptAccepted(
            order.node, order.attempt, started_ms, at_ms, order.verify_attempt, input_hash
        )
    if order.is_verification:
        failure = reply if isinstance(reply, Failure) else None
        approved = isinstance(reply, Success) and is_approved(reply.result)
        return VerificationFinished(
            order.node,
            order.attempt,
            approved,
            failure,
            started_ms,
            at_ms,
            order.verify_attempt,
        )
    if isinstance(reply, Failure):
        return AttemptFailed(order.node, order.attempt, reply, started_ms, at_ms)
    return _succeeded(order, reply, input_hash, started_ms, at_ms)


def offline(order: DispatchOrder, message: str) -> Failure:
    """Return the failure of an agent that takes no connection."""
    return _unavailable(order, message, "agent_offline")


def unhealthy(order: DispatchOrder, message: str) -> Failure:
    """Return the failure of an agent that is left alone for a while."""
    return _unavailable(order, message, "agent_unhealthy")


def _unavailable(order: DispatchOrder, message: str, details: str) -> Failure:
    return Failure(
        NodeErrorCode.AGENT_UNAVAILABLE,
        f"{order.agent_did}: {message}",
        details=details,
        target_agent_id=order.agent_did,
    )


def _succeeded(
    order: DispatchOrder, reply: Success, input_hash: str, started_ms: int, at_ms: int
) -> Event:
    try:
        result = canonical(reply.result)
    except ValueError as error:
        failure = Failure(NodeErrorCode.INVALID_REPLY, f"the result has no canonical form: {error}")
        return AttemptFailed(order.node, order.attempt, failure, started_ms, at_ms)
    metrics: dict[str, Any] = {**reply.metrics, "latency_ms": at_ms - started_ms}
    return AttemptSucceeded(
        order.node,
        order.attempt,
        reply.result,
        result.decode(),
        input_hash,
        hash_bytes(result),
        started_ms,
        at_ms,
        metrics,
    )
