"""Serves the submission of a result (`POST /v1/workflows/nodeResult`) and the read of a result.

An agent needs no API key to submit a result: the unguessable `resultId` of the dispatch is the
credential. The payer, administrators and the node's agent may read a result.
Reference: features.md (Dispatch), money.md (Settlement); decision messages-and-large-values.
"""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from msgspec import UNSET, DecodeError, Raw, Struct, UnsetType, ValidationError
from msgspec.json import decode

from actors.engine.node_results import already_settled_error, escrow_released_error
from actors.transport.messages import NodeResultReply, NodeResultRequest
from actors.values.handed_in_results import (
    HandedIn,
    HandedInDefect,
    HandedInFailure,
    HandedInResult,
    JudgedHandIn,
    judge_handed_in,
)
from actors.values.value_process import JUDGED_IN_LOOP_BYTES_MAX, ValueProcessEnded
from actors.workflows.step_commands import settlement_key
from core.canonical import hash_bytes
from core.errors import ErrorCode, ServiceError
from core.ids import event_id
from core.records.api.shape import parsed
from core.records.api.workflows import NODE_RESULT, NodeResult, NodeResultTaken
from core.records.bounds import RESULT_INLINE_BYTES_MAX
from core.records.manifest import read_stored_manifest
from core.trust.access import Principal, agent_holder
from core.trust.deployment_keys import DeploymentKeys
from core.trust.tokens import result_id
from core.workflow.events import BlobRef
from core.workflow.transitions import NodeStatus, is_terminal
from ledger.features.identity_reads import newest_keys
from ledger.features.workflow_reads import is_stored_command, result_row
from ledger.reads.stored import StoredWorkflow
from serve_app.callers.limits import RateClass
from serve_app.http.bodies import check_nul, load_json, not_json
from serve_app.http.calls import REPLAYED, Call, Operations, Repeats, Reply, invalid, not_found
from serve_app.http.idempotency import once

OPERATIONS = Operations("workflows")

# The number of recent attempts of a node whose tokens are recognised. A result of a recognised
# earlier attempt gets a refusal that says that the result is late.
ATTEMPTS_KNOWN_MAX: Final = 256
# The most bytes of the JSON text of each member in `_Names`. The bound permits long names that are
# written with escapes.
_NAME_BYTES_MAX: Final = 16 * 1024


class _Names(Struct, rename="camel"):
    """The undecoded JSON texts of the members that identify a dispatch."""

    workflow_id: Raw | UnsetType = UNSET
    node_id: Raw | UnsetType = UNSET
    result_id: Raw | UnsetType = UNSET
    agent_did: Raw | UnsetType = UNSET


_KNOWN: Final = NodeResultReply(status=NodeStatus.SUCCESS, is_repeat=True)


@dataclass(frozen=True, slots=True)
class _Dispatched:
    """The dispatch that a token belongs to: an attempt of a node, or a verification of its result.

    `verify_attempt`: the number of the verification; 0 for an attempt. `agent_did`: the agent that
    got the dispatch; "" if it is unknown.
    """

    node: Mapping[str, Any]
    attempt: int
    verify_attempt: int
    agent_did: str


@OPERATIONS.add(
    "POST",
    "/v1/workflows/nodeResult",
    scope=None,
    rate=RateClass.EXEMPT,  # The handler counts the call: only the token identifies the caller.
    body=NodeResult,
    is_agent_reply=True,
    reply=NodeResultTaken,
    errors=(
        ErrorCode.UNAUTHORIZED,
        ErrorCode.RATE_LIMITED,
        ErrorCode.ALREADY_SETTLED,
        ErrorCode.ESCROW_RELEASED,
        ErrorCode.OVERLOADED,
    ),
    repeats=Repeats.BY_HANDLER,
)
async def node_result(call: Call) -> Reply:
    """Submit the result of a dispatch that the agent accepted earlier.

    1. Count the call under its address, before anything is parsed.
    2. Find the dispatch that the token belongs to. Parse only the members that identify the
       dispatch, because the sender is not authenticated yet.
    3. Count the call under its agent. If the agent is within its limit, undo the count of the
       address, because many agents may share an address.
    4. Judge the result by the same rules as a synchronous reply.
    5. Store the result, once per idempotency key. The token is the namespace of the key.
    """
    services = call.services
    await _counted(call, None)  # 1
    body = names_of(call.body)
    workflow_id, sent = await _dispatched(call, body)  # 2
    agent = Principal(agent_holder(sent.agent_did), key_id="result", scopes=frozenset())
    headers = await _counted(call, agent)  # 3
    services.limiter.give_back(call.address, RateClass.MACHINE, services.clock_ms())
    row = await services.reads.row(workflow_id)
    if row is None:
        raise _unauthorized()
    stored = StoredWorkflow(row)
    judged = await _judged(call, stored, sent)  # 4
    # The token is stored as a hash, because it is a credential.
    holder = f"result:{hash_bytes(body.result_id.encode())}"
    taken = await once(call, holder, partial(_taken, stored=stored, sent=sent, judged=judged))  # 5
    return replace(taken, headers=(*headers, *taken.headers))


async def _taken(
    call: Call, stored: StoredWorkflow, sent: _Dispatched, judged: HandedInResult | HandedInFailure
) -> Reply:
    """Submit a judged result to the owner process, and return the reply.

    1. If the result of this attempt is already stored, reply that it is a repeat.
    2. Store a large result.
    3. Send the result to the owner process, which decides and commits.
    4. If the owner refuses because the workflow has ended, read the node again: this result may
       have been stored meanwhile and have ended the workflow. Then reply that it is a repeat.

    A repeat is refused if the payer has ended and paid the attempt by a settlement (money.md, Task
    settlement).
    """
    node = sent.node
    if _is_stored(node, sent):  # 1
        await _refuse_settled(call, stored.id, sent)
        return _reply(stored.id, sent, _KNOWN)
    if isinstance(judged, HandedInFailure):
        if is_terminal(stored.status):
            raise escrow_released_error(stored.id)
        request = NodeResultRequest(
            workflow_id=stored.id,
            node=node["name"],
            attempt=sent.attempt,
            verify_attempt=sent.verify_attempt,
            failure=judged.failure,
        )
    else:
        request = await _successful(call, stored.id, sent, judged)  # 2
    try:
        taken = await call.services.to_the_end(call.services.gateway.node_result(request))  # 3
    except ServiceError as error:
        if error.code is not ErrorCode.ESCROW_RELEASED:
            raise
        now = await call.services.reads.dispatched_node(stored.id, node["name"])
        if now is None or not _is_stored(now, sent):  # 4
            raise
        taken = _KNOWN
    if taken.is_repeat:
        await _refuse_settled(call, stored.id, sent)
    return _reply(stored.id, sent, taken)


async def _refuse_settled(call: Call, workflow_id: str, sent: _Dispatched) -> None:
    """Refuse a result of an attempt that the payer has already ended and paid.

    Raises:
        ServiceError: ALREADY_SETTLED.
    """
    key = settlement_key(workflow_id, sent.node["name"], sent.attempt)
    if await is_stored_command(call.services.reader, key):
        raise already_settled_error(sent.node["name"], sent.attempt, NodeStatus.SUCCESS)


def _is_stored(node: Mapping[str, Any], sent: _Dispatched) -> bool:
    """Return whether the node's stored result is the result of this attempt."""
    is_its = node["attempt"] == sent.attempt and not sent.verify_attempt
    return is_its and node["status"] == NodeStatus.SUCCESS


def names_of(body: bytes) -> NodeResult:
    """Return the members of a body that identify its dispatch. Other members are not decoded.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    try:
        names = decode(body, type=_Names)
    except ValidationError:
        return parsed(NodeResult, None)  # Raises INVALID_REQUEST: the body is not a JSON object.
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise not_json(error) from None
    values = {}
    for name, written in (
        ("workflowId", names.workflow_id),
        ("nodeId", names.node_id),
        ("resultId", names.result_id),
        ("agentDid", names.agent_did),
    ):
        if isinstance(written, UnsetType):
            continue
        text = bytes(written)
        if len(text) > _NAME_BYTES_MAX:
            raise invalid(name, f"{len(text)} bytes", f"at most {_NAME_BYTES_MAX} bytes")
        values[name] = load_json(text)
        check_nul(text, name)
    return parsed(NodeResult, values)


async def _dispatched(call: Call, body: NodeResult) -> tuple[str, _Dispatched]:
    """Return the workflow's id, and the dispatch that the body's token belongs to.

    Raises:
        ServiceError: INVALID_REQUEST; or UNAUTHORIZED, with a text that does not disclose which
            workflows and nodes exist.
    """
    token = body.result_id.encode("utf-8", "replace")
    try:
        workflow_id = str(uuid.UUID(body.workflow_id))
    except ValueError:
        raise _unauthorized() from None
    keys = call.services.settings.deployment_keys
    row = await call.services.reads.dispatched_node(workflow_id, body.node_id)
    if row is None:
        raise _unauthorized()
    for is_verification, newest in ((False, row["attempt"]), (True, row["verify_attempt"])):
        for number in range(newest, max(0, newest - ATTEMPTS_KNOWN_MAX), -1):
            if not is_token(keys, row, number, token, is_verification=is_verification):
                continue
            agent_did = row["verifier_did" if is_verification else "agent_did"]
            if number != newest or agent_did is None:
                agent_did = await call.services.reads.attempt_agent(
                    workflow_id, row["name"], number, is_verification=is_verification
                )
            sent = _Dispatched(
                row,
                row["attempt"] if is_verification else number,
                number if is_verification else 0,
                agent_did or "",
            )
            _check_agent(body.agent_did, sent)
            return workflow_id, sent
    raise _unauthorized()


def is_token(
    keys: DeploymentKeys,
    row: Mapping[str, Any],
    number: int,
    token: bytes,
    *,
    is_verification: bool,
) -> bool:
    """Return whether a token belongs to the attempt or the verification with this number.

    `row["key_version"]` is the version of the deployment key that made the token of the newest
    attempt. For earlier attempts and for verifications, every version is tried.

    Args:
        keys: the deployment keys.
        row: the node's row.
        number: the number of the attempt or of the verification.
        token: the token to check.
        is_verification: whether `number` is the number of a verification.
    """
    is_open = not is_verification and number == row["attempt"]
    newest = row["key_version"]  # 0 before the first attempt.
    versions = [one for one in keys.versions if newest and (not is_open or one == newest)]
    expected = (
        result_id(
            keys,
            str(row["workflow_id"]),
            row["name"],
            number,
            is_verification=is_verification,
            key_version=version,
        )
        for version in versions
    )
    return any(hmac.compare_digest(one.encode(), token) for one in expected)


def _check_agent(agent_did: object, sent: _Dispatched) -> None:
    """Refuse a result whose `agentDid` is not the agent that got the dispatch.

    Raises:
        ServiceError: UNAUTHORIZED.
    """
    if agent_did is not None and sent.agent_did and agent_did != sent.agent_did:
        raise ServiceError(
            ErrorCode.UNAUTHORIZED,
            f"got a result of {str(agent_did)[:255]}, expected one of {sent.agent_did}",
        )


def _unauthorized() -> ServiceError:
    """Return the refusal of a token that belongs to no dispatch."""
    return ServiceError(
        ErrorCode.UNAUTHORIZED, "the resultId does not belong to a dispatch of this node"
    )


async def _counted(call: Call, agent: Principal | None) -> tuple[tuple[bytes, bytes], ...]:
    """Count the call against a rate limit, and return the rate-limit headers.

    Args:
        call: the request.
        agent: the agent under which the call counts; None for the address.

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


async def _judged(
    call: Call, stored: StoredWorkflow, sent: _Dispatched
) -> HandedInResult | HandedInFailure:
    """Judge a result by the same rules as a synchronous reply.

    A large result is judged in the value process. Its queue serves the owners of agents in turn. It
    does not serve the agents in turn, because an owner may have any number of agents.

    Raises:
        ServiceError: INVALID_REQUEST if the agent can correct the result and submit it again;
            OVERLOADED if the value process failed or took too long.
    """
    name = sent.node["name"]
    definition = read_stored_manifest(stored.row["manifest"]).nodes[name]
    capability_id = definition.capability_id or definition.capability or name
    is_verdict = sent.verify_attempt > 0
    keys: tuple[str, ...] = ()
    if b'"signature"' in call.body and not is_verdict:
        keys = await newest_keys(call.services.reader, sent.agent_did)
    handed_in = HandedIn(
        body=call.body,
        event_id=event_id(stored.id, name, sent.attempt) + ("#verify" if is_verdict else ""),
        capability_id=capability_id.partition("@")[0],  # Versions follow the `@`.
        is_verdict=is_verdict,
        agent_keys=keys,
    )
    judged: JudgedHandIn
    if len(call.body) <= JUDGED_IN_LOOP_BYTES_MAX:
        judged = judge_handed_in(handed_in)
    else:
        agent = await call.services.heartbeats.claim(sent.agent_did)
        owner_did = sent.agent_did if agent is None else agent["owner_did"]
        try:
            process = call.services.gateway.value_process
            judged = await process.judge_handed_in(owner_did, handed_in)
        except ValueProcessEnded:
            detail = "checking the result took too long or failed: submit it again"
            raise ServiceError(ErrorCode.OVERLOADED, detail) from None
    if isinstance(judged, HandedInDefect):
        raise invalid(judged.path, judged.got, judged.expected)
    return judged


async def _successful(
    call: Call, workflow_id: str, sent: _Dispatched, result: HandedInResult
) -> NodeResultRequest:
    """Return the request for a successful result. A large result is stored under its hash first."""
    services, text = call.services, result.text
    is_large = len(text) > RESULT_INLINE_BYTES_MAX
    return NodeResultRequest(
        workflow_id=workflow_id,
        node=sent.node["name"],
        attempt=sent.attempt,
        verify_attempt=sent.verify_attempt,
        result_json=None if is_large else text.decode(),
        result_ref=await services.gateway.blobs.put(text) if is_large else None,
        output_hash=result.output_hash,
        metrics=result.metrics,
        signature=result.signature,
        public_key=result.public_key,
        is_wide=result.is_wide,
        is_request_signed=result.is_request_signed,
    )


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


@OPERATIONS.add("GET", "/v1/workflows/{workflow_id}/nodes/{node}/result", reply=NODE_RESULT)
async def get_result(call: Call) -> Reply:
    """Read the result of one node."""
    workflow_id, node = call.path_values["workflow_id"], call.path_values["node"]
    unknown = not_found(f"a result of {node!r} in the workflow {workflow_id}")
    row = await result_row(call.services.reader, workflow_id, node)
    if row is None or not call.may((row["payer_did"], row["agent_did"])):
        raise unknown
    if row["result_json"] is not None:
        return Reply(row["result_json"].encode())
    if row["result_ref"] is None:
        raise unknown
    ref = BlobRef.from_json(row["result_ref"])
    return Reply((await call.services.gateway.blobs.texts([ref]))[ref.hash])
