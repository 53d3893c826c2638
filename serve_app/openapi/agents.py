"""JSON Schemas of agents: cards, registrations, heartbeats.

Spec: Agent card, Registry; contract.md sections 3 and 6.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.market.agent_liveness import STATUSES, Availability
from core.records.agent import AgentCard
from serve_app.openapi.parts import (
    BOOLEAN,
    INTEGER,
    OBJECT,
    STRING,
    TIME,
    Schema,
    listing,
    nullable,
    record,
    with_example,
)

_CARD_EXAMPLE = {
    "did": "did:net:summariser",
    "endpoint": "https://agents.example.org/summariser",
    "version": 1,
    "capabilities": [
        {"id": "cap.text.summarise.v1", "description": "Sums a text up", "price_cents": 5}
    ],
    "metadata": {"name": "Summariser"},
}
_REGISTRATION = record(
    "acard",
    acard={"$ref": "#/components/schemas/AgentCard"},
    signingSecret=STRING,
    acardSignature={"type": "string", "description": "Ed25519 over the JCS form of acard"},
)
_REGISTERED = record(
    "ok success did registered",
    ok=BOOLEAN,
    success=BOOLEAN,
    id=STRING,
    did=STRING,
    agentId=STRING,
    registered={"type": "integer", "description": "capabilities of the card"},
    heartbeatToken={"type": "string", "description": "a Bearer token for heartbeats, nothing else"},
)
_AVAILABILITY: Schema = {"enum": [str(word) for word in Availability]}
_HEARTBEAT_MEMBERS: Schema = {
    "status": {"enum": list(STATUSES), "default": "healthy"},
    "load": {"type": "number", "description": "0 to 1, or above 1 up to 100 as a percentage"},
    "version": STRING,
}
AGENT_SCHEMAS: Mapping[str, Schema] = {
    "AgentCard": with_example(
        AgentCard.model_json_schema(
            by_alias=True, ref_template="#/components/schemas/AgentCard/$defs/{model}"
        ),
        _CARD_EXAMPLE,
    ),
    "Registration": with_example(_REGISTRATION, {"acard": _CARD_EXAMPLE}),
    "FlatRegistration": with_example({"type": "object"}, _CARD_EXAMPLE),
    "BulkRegistration": with_example(
        record(
            "agents",
            agents={"type": "array", "items": {"$ref": "#/components/schemas/Registration"}},
        ),
        {"agents": [{"acard": _CARD_EXAMPLE}]},
    ),
    "Registered": with_example(
        _REGISTERED,
        {"ok": True, "success": True, "did": "did:net:summariser", "registered": 1},
    ),
    "Agent": record(
        "did endpoint capabilities acard",
        did=STRING,
        endpoint=STRING,
        version=INTEGER,
        capabilities={"type": "array", "items": OBJECT},
        acard={"$ref": "#/components/schemas/AgentCard"},
        ownerDid=STRING,
        status={"enum": ["active", "inactive"]},
        isRevoked=BOOLEAN,
        registeredAt=TIME,
        updatedAt=TIME,
        availability=_AVAILABILITY,
        live=nullable(
            record(
                status=nullable(STRING),
                load=nullable({"type": "number"}),
                queueDepth=nullable(INTEGER),
                version=nullable(STRING),
                latency_ms=nullable({"type": "number"}),
                heartbeatAt=nullable(TIME),
                probedAt=nullable(TIME),
                isProbeOk=nullable(BOOLEAN),
            )
        ),
    ),
    "CardChange": with_example(
        {"type": "object", "description": "members of the card to change; null removes one"},
        {"maxConcurrency": 8},
    ),
    "Deregistered": record(
        "ok success did status",
        ok=BOOLEAN,
        success=BOOLEAN,
        did=STRING,
        status={"const": "inactive"},
    ),
    "Heartbeat": with_example(
        record(**_HEARTBEAT_MEMBERS, queueDepth=INTEGER), {"status": "healthy", "load": 0.4}
    ),
    "HeartbeatFlat": with_example(
        record(
            "did",
            did=STRING,
            **_HEARTBEAT_MEMBERS,
            latency_ms={"type": "number"},
            queue_depth=INTEGER,
        ),
        {"did": "did:net:summariser", "load": 0.4, "latency_ms": 120, "queue_depth": 3},
    ),
    "HeartbeatTaken": record(
        "ok ack availability",
        ok=BOOLEAN,
        ack=BOOLEAN,
        did=STRING,
        status={"enum": list(STATUSES)},
        availability=_AVAILABILITY,
        ttlMs={"type": "integer", "description": "how long it speaks, milliseconds"},
    ),
    "AgentList": listing("agents", "Agent"),
}
