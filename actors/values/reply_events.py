"""Judges an agent's HTTP response and builds its event; checks the signatures of all results.

Pure. Reference: features.md (Dispatch).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from actors.ports import DispatchOrder
from actors.values.agent_schemas import refused_result
from core.canonical import canonical, hash_bytes
from core.errors import NodeErrorCode
from core.json_bounds import holds_wide_integer
from core.market.settlement import gross_of
from core.message import Message
from core.money import micro_from_credits
from core.schemas.value_schema import ValueSchema
from core.trust.signatures import is_signed_by, result_message
from core.workflow.actions import AwaitResult, DispatchNode
from core.workflow.events import (
    AttemptAccepted,
    AttemptFailed,
    AttemptSucceeded,
    Event,
    Failure,
    Verdict,
    VerificationFinished,
)
from core.workflow.verdict import Accepted, Success, find_verdict, judge_reply


class ReceivedReply(Message, frozen=True):
    """An agent's HTTP response as it was received, with facts about its request.

    Args:
        event_id: the id that the agent echoes.
        retry_after: the text of the header `Retry-After`, None without one.
        body: the body without its content coding; empty if it could not be decoded.
        coding_problem: why the body could not be decoded; None: it was decoded.
        input_hash: the hash of the sent inputs.
        started_ms: when the request was sent, Unix milliseconds.
        at_ms: when the reply was complete, Unix milliseconds.
        valid_keys: the agent's keys at `at_ms`; empty if this process does not know them.
        location: the text of the header `Location`, None without one.
    """

    event_id: str
    http_status: int
    content_type: str
    retry_after: str | None
    body: bytes
    coding_problem: str | None
    input_hash: str
    started_ms: int
    at_ms: int
    valid_keys: tuple[str, ...] = ()
    location: str | None = None


def judge_received(
    order: DispatchOrder, received: ReceivedReply, schema: ValueSchema | None = None
) -> Event:
    """Return the event of a reply.

    Args:
        schema: the agent's outputSchema; None: any result is valid.
    """
    reply = judge_reply(
        received.http_status,
        received.content_type,
        received.body,
        event_id=received.event_id,
        capability_id=order.capability_id,
        retry_after=received.retry_after,
        coding_problem=received.coding_problem,
        location=received.location,
        at_ms=received.at_ms,
    )
    started_ms, at_ms = received.started_ms, received.at_ms
    if isinstance(reply, Failure):
        return build_failed_event(order, reply, started_ms, at_ms)
    if isinstance(reply, Accepted):
        return AttemptAccepted(
            order.node, order.attempt, started_ms, at_ms, order.verify_attempt, received.input_hash
        )
    if order.is_verification:
        return VerificationFinished(
            order.node,
            order.attempt,
            find_verdict(reply.result),
            None,
            started_ms,
            at_ms,
            order.verify_attempt,
        )
    return _build_success_event(order, reply, received, schema)


def build_failed_event(
    order: DispatchOrder, failure: Failure, started_ms: int, at_ms: int
) -> Event:
    """Return the event of a dispatch that failed.

    Args:
        started_ms: when the request was sent, Unix milliseconds.
        at_ms: when the dispatch failed, Unix milliseconds.
    """
    return failed_event(order, spare_refusal(order, failure), started_ms, at_ms)


def failed_event(
    of: DispatchOrder | DispatchNode | AwaitResult, failure: Failure, started_ms: int, at_ms: int
) -> Event:
    """Return the event of a failed attempt or verification.

    Args:
        of: names the attempt or the verification.
        started_ms, at_ms: when it was sent and when it failed, Unix milliseconds.
    """
    if of.verify_attempt:
        return VerificationFinished(
            of.node, of.attempt, False, failure, started_ms, at_ms, of.verify_attempt
        )
    return AttemptFailed(of.node, of.attempt, failure, started_ms, at_ms)


def spare_refusal(order: DispatchOrder, failure: Failure) -> Failure:
    """Return a failure, marked as spared if an agent without an inputSchema has refused inputs.

    An agent with an inputSchema gets no inputs that break its schema. So a refusal of inputs is the
    agent's fault.
    """
    if failure.is_refusal and not order.input_schema:
        return replace(failure, is_spared=True)
    return failure


def check_signature(
    order: DispatchOrder,
    signature: object,
    named_key: object,
    output_hash: str,
    valid_keys: tuple[str, ...] = (),
    *,
    is_wide: Callable[[], bool] = lambda: False,
) -> Failure | str | None:
    """Return the key that signed a result, or the failure of the signature.

    None means that the signature cannot be checked. The cases, in order:
    1. The agent has registered no key: None.
    2. The reply names a key that the agent does not have. Retryable: the key may be a new one.
    3. The signature is by a key that is valid when the result arrives: this key.
    4. The signature is by the key that was valid at the dispatch and has been replaced. This is not
       fraud, but the signature is no longer valid. Retryable.
    5. The signature is by no key of the agent: fraud. A result with an integer beyond 2^53 is
       spared, because standard libraries for RFC 8785 refuse or round such integers.

    Args:
        signature: the agent's signature, not None.
        named_key: the key that the reply names; None: the reply names no key.
        output_hash: the hash of the result.
        valid_keys: the agent's keys when the result arrives; empty: use the dispatch's key.
        is_wide: says whether the result contains an integer beyond 2^53.

    Reference: features.md (Signed results, Key rotation); decisions stakes-and-slashing and
    agent-identity.
    """
    sent_key = order.public_key
    if not valid_keys:
        if sent_key is None:  # 1
            return None
        valid_keys = (sent_key,)
    named = named_key.removeprefix("ed25519:") if isinstance(named_key, str) else named_key
    if named is not None and named not in (*valid_keys, sent_key):  # 2
        message = f"the result is signed with another key than the one {order.agent_did} registered"
        return Failure(NodeErrorCode.INVALID_REPLY, message)
    message_bytes = result_message(order.node, order.workflow_id, output_hash)
    for key in valid_keys:  # 3
        if is_signed_by(key, message_bytes, signature):
            return key
    is_former = sent_key is not None and sent_key not in valid_keys
    if is_former and is_signed_by(sent_key or "", message_bytes, signature):  # 4
        message = f"the result is signed with a key of {order.agent_did} that was replaced"
        return Failure(NodeErrorCode.INVALID_REPLY, message)
    message = f"the signature of the result is not {order.agent_did}'s"  # 5
    failure = Failure(NodeErrorCode.INVALID_REPLY, message, Verdict.FINAL_FOR_AGENT)
    return replace(failure, is_spared=True) if is_wide() else replace(failure, is_forged=True)


def _build_success_event(
    order: DispatchOrder, reply: Success, received: ReceivedReply, schema: ValueSchema | None
) -> Event:
    started_ms, at_ms = received.started_ms, received.at_ms
    try:
        result = canonical(reply.result)
    except ValueError as error:
        failure = Failure(NodeErrorCode.INVALID_REPLY, f"the result has no canonical form: {error}")
        return build_failed_event(order, failure, started_ms, at_ms)
    output_hash = hash_bytes(result)
    signed_key = None
    if reply.signature is not None:
        checked = check_signature(
            order,
            reply.signature,
            reply.public_key,
            output_hash,
            received.valid_keys,
            is_wide=lambda: holds_wide_integer(reply.result),
        )
        if isinstance(checked, Failure):
            return build_failed_event(order, checked, started_ms, at_ms)
        signed_key = checked
    breach = None if schema is None else schema.find_breach(reply.result, len(received.body))
    if breach is not None:
        refused = refused_result(order.agent_did, breach)
        return build_failed_event(order, refused, started_ms, at_ms)
    metrics: dict[str, Any] = {**reply.metrics, "latency_ms": at_ms - started_ms}
    charged_micro = None
    if order.peer is not None:  # `peer_orders.py` wrote these metrics, not an agent
        charged_micro = micro_from_credits(metrics["peer"]["chargedCredits"])
        charged_micro = gross_of(charged_micro, order.peer.fee_bps)
    return AttemptSucceeded(
        order.node,
        order.attempt,
        result.decode(),
        received.input_hash,
        output_hash,
        started_ms,
        at_ms,
        metrics,
        signature=reply.signature if signed_key else None,
        signed_key=signed_key,
        charged_micro=charged_micro,
    )
