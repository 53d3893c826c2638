"""Results that agents hand in: `POST /v1/workflows/nodeResult`.

No key is needed: the unguessable `resultId` of the dispatch is the credential.
Spec: Dispatch response; contract.md section 5 (asynchronous agents); money.md cases 9 and 11.
"""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import orjson

from actors.engine.node_results import escrow_released_error
from actors.transport.messages import NodeResultReply, NodeResultRequest
from core.canonical import canonical, hash_bytes
from core.errors import ErrorCode, NodeErrorCode, ServiceError
from core.ids import event_id
from core.records.api.shape import parsed
from core.records.api.workflows import NodeResult, NodeResultTaken
from core.trust.access import Principal, agent_holder
from core.trust.derived_keys import KEY_VERSION
from core.trust.result_token import result_id
from core.workflow.events import Failure
from core.workflow.transitions import NodeStatus, is_terminal
from core.workflow.verdict import Success, is_approved, judge_reply
from ledger.reads.stored import StoredWorkflow
from serve_app.callers.limits import RateClass
from serve_app.http.calls import REPLAYED, Call, Operation, Repeats, Reply, invalid
from serve_app.http.compiling import apart
from serve_app.http.repeats import once

# Earlier attempts are known by their token too, to be told that they are late.
ATTEMPTS_KNOWN_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class _Dispatched:
    """The dispatch that a token belongs to: of a node's attempt, or of its verification."""

    node: Mapping[str, Any]
    attempt: int
    verify_attempt: int

    @property
    def agent_did(self) -> str:
        """The agent that it was sent to, as far as the row still tells."""
        return str(self.node["verifier_did" if self.verify_attempt else "agent_did"] or "")


async def node_result(call: Call) -> Reply:
    """Take the result of a dispatch that an agent answered with "later".

    1. Count the call for its address, before anything is read. 2. Which dispatch does the token
    name? 3. Count the call for its agent; one that is allowed is given back to the address, which
    may be home to many agents. 4. Judge the result as a reply is judged. 5. Take it, once per
    idempotency key; whose key it is, the token tells.
    """
    services = call.services
    await _counted(call, None)  # 1
    body = parsed(NodeResult, call.json)
    workflow_id, sent = await _dispatched(call, body)  # 2
    agent = Principal(agent_holder(sent.agent_did), key_id="result", scopes=frozenset())
    headers = await _counted(call, agent)  # 3
    services.limiter.give_back(call.address, RateClass.MACHINE, services.clock_ms())
    row = await services.reads.row(workflow_id)
    if row is None:
        raise _unauthorized()
    stored = StoredWorkflow(row)
    reply = await _judged(call, stored, sent)  # 4
    # Hashed, because what is stored must not be a credential.
    holder = f"result:{hash_bytes(body.result_id.encode())}"
    taken = await once(call, holder, partial(_taken, stored=stored, sent=sent, reply=reply))  # 5
    return replace(taken, headers=(*headers, *taken.headers))


async def _taken(
    call: Call, stored: StoredWorkflow, sent: _Dispatched, reply: Success | Failure
) -> Reply:
    """1. What was stored before is answered from the row. 2. A large result is stored first. 3. The
    owner decides and commits."""
    node = sent.node
    if (
        node["status"] == NodeStatus.SUCCESS
        and node["attempt"] == sent.attempt
        and not sent.verify_attempt
    ):  # 1
        known = NodeResultReply(status=NodeStatus.SUCCESS, is_repeat=True)
        return _reply(stored.id, sent, known)
    if isinstance(reply, Failure):
        if is_terminal(stored.status):
            raise escrow_released_error(stored.id)
        request = NodeResultRequest(
            workflow_id=stored.id,
            node=node["name"],
            attempt=sent.attempt,
            verify_attempt=sent.verify_attempt,
            failure=reply,
        )
    else:
        request = await _successful(call, stored.id, sent, reply)  # 2
    taken = await call.services.to_the_end(call.services.gateway.node_result(request))  # 3
    return _reply(stored.id, sent, taken)


async def _dispatched(call: Call, body: NodeResult) -> tuple[str, _Dispatched]:
    """Return the workflow's id and the dispatch that the body's token belongs to.

    Raises:
        ServiceError: INVALID_REQUEST, or UNAUTHORIZED without a word about what exists.
    """
    token = body.result_id.encode("utf-8", "replace")
    try:
        workflow_id = str(uuid.UUID(body.workflow_id))
    except ValueError:
        raise _unauthorized() from None
    row = await call.services.reads.dispatched_node(workflow_id, body.node_id)
    if row is None:
        raise _unauthorized()
    key = bytes.fromhex(call.services.settings.deployment_key)
    for is_verification, newest in ((False, row["attempt"]), (True, row["verify_attempt"])):
        for number in range(newest, max(0, newest - ATTEMPTS_KNOWN_MAX), -1):
            if not is_token(key, row, number, token, is_verification=is_verification):
                continue
            sent = _Dispatched(
                row,
                row["attempt"] if is_verification else number,
                number if is_verification else 0,
            )
            _check_agent(body.agent_did, sent)
            return workflow_id, sent
    raise _unauthorized()


def is_token(
    key: bytes, row: Mapping[str, Any], number: int, token: bytes, *, is_verification: bool
) -> bool:
    """Say whether a token is that of the node's attempt, or verification, of this number.

    The row names the version of the open attempt's keys; earlier attempts may have earlier ones.
    """
    newest = min(row["key_version"], KEY_VERSION)
    is_open = not is_verification and number == row["attempt"]
    oldest = max(1, newest) if is_open else 1
    expected = (
        result_id(
            key,
            str(row["workflow_id"]),
            row["name"],
            number,
            is_verification=is_verification,
            key_version=version,
        )
        for version in range(newest, oldest - 1, -1)
    )
    return any(hmac.compare_digest(one.encode(), token) for one in expected)


def _check_agent(agent_did: object, sent: _Dispatched) -> None:
    """Refuse an agent that says it is another than the one that was asked.

    Raises:
        ServiceError: UNAUTHORIZED.
    """
    is_newest = sent.verify_attempt or sent.attempt == sent.node["attempt"]
    if agent_did is None or not is_newest or not sent.agent_did:
        return
    if agent_did != sent.agent_did:
        raise ServiceError(
            ErrorCode.UNAUTHORIZED,
            f"got a result of {str(agent_did)[:255]}, expected one of {sent.agent_did}",
        )


def _unauthorized() -> ServiceError:
    """Return the refusal of a token that names nothing."""
    return ServiceError(
        ErrorCode.UNAUTHORIZED, "the resultId is not that of a dispatch of this node"
    )


async def _counted(call: Call, agent: Principal | None) -> tuple[tuple[bytes, bytes], ...]:
    """Count the call; return the headers that say where the agent, or the address, stands.

    Args:
        agent: None to count the call's address.

    Raises:
        ServiceError: RATE_LIMITED.
    """
    services = call.services
    standing = await services.limiter.take(
        agent, call.address, RateClass.MACHINE, services.clock_ms()
    )
    if standing is None:
        return ()
    if not standing.is_allowed:
        raise standing.refusal()
    return tuple(standing.headers(services.now_ms()))


async def _judged(call: Call, stored: StoredWorkflow, sent: _Dispatched) -> Success | Failure:
    """Judge the result as a synchronous reply is judged.

    Raises:
        ServiceError: INVALID_REQUEST; the agent can mend that and hand it in again.
    """
    name = sent.node["name"]
    event = event_id(stored.id, name, sent.attempt) + ("#verify" if sent.verify_attempt else "")
    definition = orjson.loads(stored.row["manifest"])["nodes"][name]
    judged = partial(
        judge_reply,
        200,
        "application/json",
        call.body,
        event_id=event,
        capability_id=definition.get("capabilityId") or definition.get("capability") or name,
    )
    verdict = await apart(len(call.body), judged)
    if isinstance(verdict, Failure) and verdict.code is NodeErrorCode.INVALID_REPLY:
        raise invalid("$", verdict.message, "a result with status success, or an error")
    if not isinstance(verdict, Success | Failure):
        raise invalid("$", "neither a result nor an error", "one of them")
    return verdict


async def _successful(
    call: Call, workflow_id: str, sent: _Dispatched, reply: Success
) -> NodeResultRequest:
    """Return the request of a good result; a large one is stored and goes by reference.

    Raises:
        ServiceError: INVALID_REQUEST; the result has no canonical form.
    """
    try:
        is_verdict = sent.verify_attempt > 0
        text = await apart(
            len(call.body), partial(result_text, reply.result, is_verdict=is_verdict)
        )
    except ValueError as error:
        raise invalid("result", str(error), "a value with a canonical form") from None
    services = call.services
    is_large = len(text) > services.settings.result_inline_bytes_max
    return NodeResultRequest(
        workflow_id=workflow_id,
        node=sent.node["name"],
        attempt=sent.attempt,
        verify_attempt=sent.verify_attempt,
        result_json=None if is_large else text.decode(),
        result_ref=await services.gateway.blobs.put(text) if is_large else None,
        output_hash=hash_bytes(text),
        metrics=reply.metrics,
        signature=reply.signature,
        public_key=reply.public_key,
    )


def result_text(result: Any, *, is_verdict: bool) -> bytes:
    """Return the canonical text of a result as its owner gets it.

    Args:
        is_verdict: a verifier's result, of which its owner, who would parse it in its loop, reads
            only whether it approves.

    Raises:
        ValueError: the result has no canonical form.
    """
    return canonical({"approved": is_approved(result)} if is_verdict else result)


def _reply(workflow_id: str, sent: _Dispatched, taken: NodeResultReply) -> Reply:
    body = {
        "success": True,
        "ok": True,
        "workflowId": workflow_id,
        "nodeId": sent.node["name"],
        "attempt": sent.attempt,
        "status": taken.status,
    }
    return Reply(body, headers=(REPLAYED,) if taken.is_repeat else ())


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/workflows/nodeResult",
        handler=node_result,
        summary="Hand in the result of a dispatch that was accepted before",
        scope=None,
        rate=RateClass.EXEMPT,  # counted by the handler: the token alone tells who calls
        tag="workflows",
        body=NodeResult,
        reply=NodeResultTaken,
        errors=(
            ErrorCode.UNAUTHORIZED,
            ErrorCode.RATE_LIMITED,
            ErrorCode.ALREADY_SETTLED,
            ErrorCode.ESCROW_RELEASED,
            ErrorCode.LEDGER_UNAVAILABLE,
            ErrorCode.OVERLOADED,
        ),
        is_agent_reply=True,
        repeats=Repeats.BY_HANDLER,
    ),
)
