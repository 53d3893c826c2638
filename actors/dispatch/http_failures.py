"""Finds the failure of a request that got no reply, and its effect on the agent's health.

The functions are pure. Reference: features.md (Dispatch). Decisions agent-health-and-waiting and
limits-and-admission.
"""

from __future__ import annotations

from typing import Final

from actors.ports import Contact, DispatchOrder
from core.errors import NodeErrorCode
from core.records.bounds import AGENT_REPLY_BYTES_MAX
from core.workflow.events import Failure, Verdict
from federation.http_connection import HttpFailure, HttpFailureKind

# A timeout shorter than this has no effect on the agent's health.
JUDGED_TIMEOUT_MS_MIN: Final = 1_000


def judge_failure(
    order: DispatchOrder, outcome: HttpFailure, connect_timeout_ms: int
) -> tuple[Failure, Contact]:
    """Return the failure of an attempt without a reply, and the `Contact` for the agent's health.

    Args:
        outcome: why there is no reply.
        connect_timeout_ms: the timeout of opening a connection.
    """
    match outcome.kind:
        case HttpFailureKind.CONNECT_TIMEOUT:
            # Nothing was sent. If this is an order to a peer, another candidate may get the node.
            is_peer = order.peer is not None
            failure = unavailable_failure(order, outcome.detail, is_declined=is_peer)
            if order.timeout_ms >= connect_timeout_ms:
                return failure, Contact.UNREACHABLE  # the payer's timeout was not the limit
            return failure, _contact_of_timeout(order)
        case HttpFailureKind.TIMEOUT:
            message = f"no reply within {order.timeout_ms} ms"
            # The agent is spared if it had less time than it promises to need.
            is_spared = order.timeout_ms < order.promised_ms
            failure = Failure(NodeErrorCode.AGENT_TIMEOUT, message, is_spared=is_spared)
            return failure, _contact_of_timeout(order)
        case HttpFailureKind.DENIED:
            message = f"the egress policy forbids {order.agent_did}: {outcome.detail}"
            failure = Failure(NodeErrorCode.POLICY_DENIED, message, Verdict.FINAL)
            return failure, Contact.REACHED
        case HttpFailureKind.NOT_TRIED:
            message = (
                f"the request was not sent because of a failure in the service: {outcome.detail}"
            )
            return Failure(NodeErrorCode.AGENT_ERROR, message, is_spared=True), Contact.UNKNOWN
        case HttpFailureKind.WITHHELD:
            # LOST: the next attempt uses no retry, and waits until this member may send.
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
            return broken, Contact.UNANSWERED  # the inputs of this payer may cause the break


def unavailable_failure(
    order: DispatchOrder, message: str, details: str = "agent_offline", *, is_declined: bool
) -> Failure:
    """Return the failure of an attempt whose agent refused the connection, or got no request.

    Args:
        details: the state of the agent, from the closed list of AGENT_UNAVAILABLE.
        is_declined: the work was not sent, so another candidate gets the node without a retry.
    """
    return Failure(
        NodeErrorCode.AGENT_UNAVAILABLE,
        f"{order.agent_did}: {message}",
        details=details,
        target_agent_id=order.agent_did,
        is_declined=is_declined,
    )


def _contact_of_timeout(order: DispatchOrder) -> Contact:
    """Return `UNANSWERED`, or `UNKNOWN` if the agent had too little time.

    The agent had too little time in three cases. The workflow's deadline cut the timeout short.
    (Usually the order is aborted at the deadline, but the commit of the end may take longer.) The
    payer's timeout is shorter than `JUDGED_TIMEOUT_MS_MIN`. Or the timeout is shorter than the
    agent's promised time (money.md, Promised time).
    """
    is_telling = (
        order.timeout_ms >= max(JUDGED_TIMEOUT_MS_MIN, order.promised_ms) and not order.is_cut_short
    )
    return Contact.UNANSWERED if is_telling else Contact.UNKNOWN
