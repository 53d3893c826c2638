"""Heartbeats: an agent says that it lives and how busy it is.

Two forms, the agent in the path or in the body. Who may: the agent's owner, the agent itself, an
administrator, or whoever holds the token that its registration returned.
Spec: contract.md section 6 (Heartbeat).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.errors import ErrorCode, ServiceError
from core.market.agent_liveness import HEARTBEAT_TTL_MS, STATUSES, load_share
from core.trust.access import HEARTBEAT
from ledger.agents.agent_live import Heartbeat
from serve_app.auth import HEARTBEAT_KEY_ID
from serve_app.calls import Call, Operation, Reply, invalid, kind_of, not_found
from serve_app.limits import RateClass

AGENTS_WRITE = "agents:write"
TEXT_MAX: Final = 64
NUMBER_MAX: Final = 2**31 - 1
STATUS_DEFAULT: Final = "healthy"


async def heartbeat(call: Call) -> Reply:
    """Take the heartbeat of the agent in the path."""
    body = {} if call.json is None else call.object_body()
    given = (call.raw_segment(2), call.path_values["did"])
    named = body.get("did")
    if named is not None and named not in given:
        raise invalid("did", str(named), f"{given[1]}, the agent in the path, or nothing")
    return await _beat(call, given, body)


async def heartbeat_flat(call: Call) -> Reply:
    """Take the heartbeat of the agent in the body."""
    body = call.object_body()
    did = body.get("did")
    if not isinstance(did, str):
        raise invalid("did", kind_of(did), "the agent's DID")
    return await _beat(call, (did,), body)


async def _beat(call: Call, given: tuple[str, ...], body: dict[str, Any]) -> Reply:
    """1. read it; 2. find the agent; 3. may the caller; 4. store it; 5. answer."""
    services = call.services
    parsed = _parsed(given[-1], body)
    row = None
    # Raw before decoded: a DID may itself hold percent signs.
    for did in dict.fromkeys(given):
        row = row or await services.heartbeats.claim(did)
    if row is None:
        raise not_found(f"the agent {given[-1][:255]}")
    did = row["did"]
    caller = call.caller
    call.require(call.right, did, row["owner_did"])
    if caller.key_id.startswith(HEARTBEAT_KEY_ID):
        revision = int(caller.key_id.removeprefix(HEARTBEAT_KEY_ID))
        if revision != row["token_revision"]:
            raise ServiceError(
                ErrorCode.UNAUTHORIZED, "the heartbeat token is older than the agent's return"
            )
    if row["status"] != "active":
        raise ServiceError(ErrorCode.CONFLICT, f"{did} was deregistered; register it again")
    heartbeat = parsed if parsed.did == did else _parsed(did, body)
    await services.heartbeats.store(heartbeat, row["updated_ms"])
    return Reply(
        {
            "ok": True,
            "ack": True,
            "did": did,
            "status": parsed.status,
            "availability": STATUSES[parsed.status],
            "ttlMs": HEARTBEAT_TTL_MS,
        }
    )


def _parsed(did: str, body: Mapping[str, Any]) -> Heartbeat:
    """Read either form's members; both spellings of each are known.

    Raises:
        ServiceError: INVALID_REQUEST; a member has another type or lies outside its range.
    """
    status = body.get("status", STATUS_DEFAULT)
    if not isinstance(status, str) or status.lower() not in STATUSES:
        raise invalid("status", str(status), "one of " + ", ".join(STATUSES))
    load = _number(body, "load")
    share = None if load is None else load_share(load)
    if load is not None and share is None:
        raise invalid("load", str(load), "0 to 1, or above 1 up to 100 as a percentage")
    depth = _number(body, "queueDepth", "queue_depth")
    if depth is not None and (depth != int(depth) or depth > NUMBER_MAX):
        raise invalid("queueDepth", str(depth), "a whole number from 0")
    version = body.get("version")
    if version is not None and (isinstance(version, bool) or not isinstance(version, str | int)):
        raise invalid("version", kind_of(version), "a string or a whole number")
    if version is not None and not 0 < len(str(version)) <= TEXT_MAX:
        raise invalid("version", str(version), f"1 to {TEXT_MAX} characters")
    return Heartbeat(
        did=did,
        status=status.lower(),
        load=share,
        queue_depth=None if depth is None else int(depth),
        version=None if version is None else str(version),
        latency_ms=_number(body, "latency_ms", "latencyMs"),
    )


def _number(body: Mapping[str, Any], *names: str) -> float | None:
    """Return the first of these members that is there: a number from 0."""
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # `not >=` refuses what is no number at all as well.
        if not is_number or not 0 <= value <= NUMBER_MAX:
            raise invalid(name, str(value), f"a number from 0 to {NUMBER_MAX}")
        return float(value)
    return None


_ERRORS = (ErrorCode.NOT_FOUND, ErrorCode.FORBIDDEN, ErrorCode.CONFLICT, ErrorCode.OVERLOADED)

OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/agents/{did}/heartbeat",
        handler=heartbeat,
        summary="Say that an agent lives",
        scope=HEARTBEAT,
        rate=RateClass.MACHINE,
        tag="agents",
        request="Heartbeat",
        reply="HeartbeatTaken",
        parameters=("AgentDid",),
        errors=_ERRORS,
        is_body_optional=True,
    ),
    Operation(
        method="POST",
        path="/v1/heartbeat",
        handler=heartbeat_flat,
        summary="Say that an agent lives, its DID in the body",
        scope=HEARTBEAT,
        rate=RateClass.MACHINE,
        tag="agents",
        request="HeartbeatFlat",
        reply="HeartbeatTaken",
        errors=_ERRORS,
    ),
)
