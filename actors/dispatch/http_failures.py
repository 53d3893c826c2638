"""What a request without a reply is to its attempt, and to its agent's health.

Pure. Reference: features.md (Dispatch). Decisions agent-health-and-waiting and
limits-and-admission.
"""

from __future__ import annotations

from typing import Final

from actors.ports import Contact, DispatchOrder
from core.errors import NodeErrorCode
from core.records.bounds import AGENT_REPLY_BYTES_MAX
from core.workflow.events import Failure, Verdict
from federation.http_connection import HttpFailure, HttpFailureKind

# A passed timeout shorter than this says nothing about the agent.
TELLING_TIMEOUT_MS: Final = 1_000


def judge_failure(
    order: DispatchOrder, outcome: HttpFailure, connect_timeout_ms: int
) -> tuple[Failure, Contact]:
    """Return the failure of an attempt without a reply, and what it tells of reaching the agent.

    Args:
        outcome: why no reply came.
        connect_timeout_ms: the timeout of opening a connection.
    """
    match outcome.kind:
        case HttpFailureKind.CONNECT_TIMEOUT:
            # Of a peer nothing was sent: another candidate may take the node.
            is_peer = order.peer is not None
            failure = unavailable_failure(order, outcome.detail, is_declined=is_peer)
            if order.timeout_ms >= connect_timeout_ms:
                return failure, Contact.UNREACHABLE  # no payer has chosen that time
            return failure, _contact_of_timeout(order)
        case HttpFailureKind.TIMEOUT:
            message = f"no reply within {order.timeout_ms} ms"
            is_spared = order.timeout_ms < order.promised_ms  # the agent did not have its time
            failure = Failure(NodeErrorCode.AGENT_TIMEOUT, message, is_spared=is_spared)
            return failure, _contact_of_timeout(order)
        case HttpFailureKind.DENIED:
            message = f"the egress policy forbids {order.agent_did}: {outcome.detail}"
            failure = Failure(NodeErrorCode.POLICY_DENIED, message, Verdict.FINAL)
            return failure, Contact.REACHED
        case HttpFailureKind.NOT_TRIED:
            message = f"the service could not try: {outcome.detail}"
            return Failure(NodeErrorCode.AGENT_ERROR, message, is_spared=True), Contact.UNKNOWN
        case HttpFailureKind.WITHHELD:
            # The next attempt waits until this member may send, and uses up no retry.
            message = f"the request was not sent: {outcome.detail}"
            return Failure(NodeErrorCode.AGENT_ERROR, message, Verdict.LOST), Contact.UNKNOWN
        case HttpFailureKind.UNREACHABLE:
            is_peer = order.peer is not None
            detail = outcome.detail if is_peer else "the connection was refused"
            failure = unavailable_failure(order, detail, is_declined=True)
            return failure, Contact.UNREACHABLE
        case HttpFailureKind.TOO_LARGE:
            message = f"the reply is larger than {AGENT_REPLY_BYTES_MAX} bytes"
            return Failure(NodeErrorCode.RESULT_TOO_LARGE, message), Contact.REACHED
        case HttpFailureKind.BROKEN:
            message = f"the connection broke: {outcome.detail}"
            broken = Failure(NodeErrorCode.AGENT_ERROR, message, is_spared=True)
            return broken, Contact.UNANSWERED  # a payer's input may be what breaks it


def unavailable_failure(
    order: DispatchOrder, message: str, details: str = "agent_offline", *, is_declined: bool
) -> Failure:
    """Return the failure of an agent that accepts no connection, or is not asked for its state.

    Args:
        details: its state.
        is_declined: it has not been sent the work.
    """
    return Failure(
        NodeErrorCode.AGENT_UNAVAILABLE,
        f"{order.agent_did}: {message}",
        details=details,
        target_agent_id=order.agent_did,
        is_declined=is_declined,
    )


def _contact_of_timeout(order: DispatchOrder) -> Contact:
    """Return `UNANSWERED`, or `UNKNOWN` where the agent was given too little time.

    It may be the workflow's rest: that ends then, and mostly takes its order back, but its commit
    may be slower. Or its payer has set a time-out in which no agent can answer, or a shorter one
    than the agent promises (money.md, Promised time).
    """
    is_telling = (
        order.timeout_ms >= max(TELLING_TIMEOUT_MS, order.promised_ms) and not order.is_cut_short
    )
    return Contact.UNANSWERED if is_telling else Contact.UNKNOWN
