"""Heartbeats: an agent says that it lives and how busy it is.

Two forms, the agent in the path or in the body. Who may: the agent's owner, the agent itself, an
administrator, or the holder of the token that its registration returned.
"""

from __future__ import annotations

from core.errors import ErrorCode, ServiceError
from core.market.agent_liveness import HEARTBEAT_TTL_MS, availability_share, load_share
from core.records.api.agents import Heartbeat, HeartbeatFlat, HeartbeatTaken
from core.records.statuses import HEARTBEAT_STATUSES
from core.trust.access import HEARTBEAT, agent_holder
from ledger.features.agent_live import Heartbeat as Heard
from serve_app.callers.auth import HEARTBEAT_KEY_ID
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Json, Operations, found, invalid

OPERATIONS = Operations("agents")


@OPERATIONS.add(
    "POST",
    "/v1/agents/{did}/heartbeat",
    scope=HEARTBEAT,
    rate=RateClass.MACHINE,
    body=Heartbeat,
    is_body_optional=True,
    reply=HeartbeatTaken,
)
async def heartbeat(call: Call) -> Json:
    """Send a heartbeat of an agent."""
    body = call.given(Heartbeat)
    did = call.path_values["did"]
    if body.did not in (None, did):
        raise invalid("did", str(body.did), f"{did}, the agent in the path, or no did")
    return await _beat(call, did, body)


@OPERATIONS.add(
    "POST",
    "/v1/heartbeat",
    scope=HEARTBEAT,
    rate=RateClass.MACHINE,
    body=HeartbeatFlat,
    reply=HeartbeatTaken,
    errors=(ErrorCode.NOT_FOUND,),
)
async def heartbeat_flat(call: Call) -> Json:
    """Send a heartbeat of the agent that the body names."""
    body = call.given(HeartbeatFlat)
    return await _beat(call, body.did, body)


async def _beat(call: Call, did: str, body: Heartbeat | HeartbeatFlat) -> Json:
    """1. read it; 2. find the agent; 3. may the caller; 4. store it; 5. answer."""
    services = call.services
    heard = _heard(did, body)
    row = found(await services.heartbeats.claim(did), f"the agent {did[:255]}")
    caller = call.caller
    if not caller.key_id.startswith(HEARTBEAT_KEY_ID):
        call.require(call.right, did, row["owner_did"])
    else:
        call.require(call.right, agent_holder(did))
        revision = int(caller.key_id.removeprefix(HEARTBEAT_KEY_ID))
        if revision != row["token_revision"]:
            raise ServiceError(
                ErrorCode.UNAUTHORIZED,
                "the heartbeat token was replaced when the agent was registered again: use the"
                " new one",
            )
    if row["status"] != "active":
        raise ServiceError(ErrorCode.CONFLICT, f"{did} was deregistered; register it again")
    await services.heartbeats.store(heard, row["updated_ms"])
    return {
        "ok": True,
        "ack": True,
        "did": did,
        "status": body.status,
        "availability": availability_share(
            HEARTBEAT_STATUSES[body.status],
            load=heard.load,
            queue_depth=heard.queue_depth,
            latency_ms=heard.latency_ms,
        ),
        "ttlMs": HEARTBEAT_TTL_MS,
    }


def _heard(did: str, body: Heartbeat | HeartbeatFlat) -> Heard:
    """Return what a heartbeat says of an agent.

    Raises:
        ServiceError: INVALID_REQUEST; `load` lies outside its range.
    """
    share = None if body.load is None else load_share(body.load)
    if body.load is not None and share is None:
        raise invalid("load", str(body.load), "0 to 1, or above 1 up to 100 as a percentage")
    return Heard(
        did=did,
        status=body.status,
        load=share,
        queue_depth=body.queue_depth,
        version=body.version,
        latency_ms=body.latency_ms,
    )
