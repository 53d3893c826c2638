"""What the reply to an order means as an event, whichever way it came: as a response or later.

Pure. Spec: Dispatch response; contract.md section 5.
"""

from __future__ import annotations

from typing import Any

from actors.engine.ports import DispatchOrder
from core.canonical import canonical, hash_bytes
from core.errors import NodeErrorCode
from core.trust.signatures import is_signed_by, result_message
from core.workflow.events import (
    AttemptAccepted,
    AttemptFailed,
    AttemptSucceeded,
    Event,
    Failure,
    Verdict,
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


def signature_failure(
    order: DispatchOrder, signature: object, named_key: object, output_hash: str
) -> Failure | None:
    """Return what is wrong with the signature of a result, None when it holds or nobody can tell.

    1. The agent has registered no key: there is nothing to judge by. 2. It names another key than
    the registered one, which may be one that it has changed meanwhile: try again. 3. The signature
    is not the registered key's: fraud.

    Args:
        signature: as the agent gave it, not None.
        named_key: the key that it says it has signed with, None for the registered one.
        output_hash: of the result.

    Spec: Signed results; contract.md section 6; decision 0087.
    """
    if order.public_key is None:  # 1
        return None
    if named_key is not None and not _is_key(named_key, order.public_key):  # 2
        message = f"the result is signed with another key than the one {order.agent_did} registered"
        return Failure(NodeErrorCode.INVALID_REPLY, message)
    message_bytes = result_message(order.node, order.workflow_id, output_hash)
    if is_signed_by(order.public_key, message_bytes, signature):
        return None
    message = f"the signature of the result is not {order.agent_did}'s"  # 3
    verdict = Verdict.FINAL_FOR_AGENT
    return Failure(NodeErrorCode.INVALID_REPLY, message, verdict, is_forged=True)


def _is_key(named: object, registered: str) -> bool:
    return isinstance(named, str) and named.removeprefix("ed25519:") == registered


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
    output_hash = hash_bytes(result)
    if reply.signature is not None:
        wrong = signature_failure(order, reply.signature, reply.public_key, output_hash)
        if wrong is not None:
            return AttemptFailed(order.node, order.attempt, wrong, started_ms, at_ms)
    metrics: dict[str, Any] = {**reply.metrics, "latency_ms": at_ms - started_ms}
    return AttemptSucceeded(
        order.node,
        order.attempt,
        reply.result,
        result.decode(),
        input_hash,
        output_hash,
        started_ms,
        at_ms,
        metrics,
    )
