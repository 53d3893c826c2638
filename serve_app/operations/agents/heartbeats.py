"""Heartbeats: an agent reports that it is alive and how busy it is.

The path or the body names the agent. The agent, its owner, administrators, and the holder of the
heartbeat token that the registration returned may send a heartbeat.
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
    """Check a heartbeat and the caller's permission, store the heartbeat, and return the reply."""
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
    """Return the heartbeat to store, with `load` as a share from 0 to 1.

    Raises:
        ServiceError: INVALID_REQUEST: `load` is outside its range.
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
