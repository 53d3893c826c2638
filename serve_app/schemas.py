"""JSON Schemas of the API, by the names that operations declare.

Descriptions for readers and generators of clients; requests are judged by `core/records` and the
routes. Spec: Resources and their fields; contract.md sections 1, 2, 3 and 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.records.agent import AgentCard
from core.workflow.transitions import NodeStatus, WorkflowStatus

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_INTEGER: Schema = {"type": "integer"}
_BOOLEAN: Schema = {"type": "boolean"}
_OBJECT: Schema = {"type": "object"}
_TIME: Schema = {"type": "string", "format": "date-time", "examples": ["2026-01-31T12:00:00.000Z"]}
_CREDITS: Schema = {"type": "number", "description": "credits, at most 6 decimals"}
_CREDITS_IN: Schema = {
    "type": ["number", "string"],
    "description": "credits, at most 6 decimals; text keeps decimals exact",
}
_HASH: Schema = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}


def _record(required: str = "", /, **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required.split()
    return schema


def _nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list(plural: str, item: str) -> Schema:
    return _record(
        f"{plural} limit offset nextCursor",
        **{
            plural: {"type": "array", "items": {"$ref": f"#/components/schemas/{item}"}},
            "limit": _INTEGER,
            "offset": _INTEGER,
            "nextCursor": _nullable(_STRING),
        },
    )


def _with_example(schema: Schema, example: Any) -> Schema:
    return {**schema, "examples": [example]}


_CARD_EXAMPLE = {
    "did": "did:net:summariser",
    "endpoint": "https://agents.example.org/summariser",
    "version": 1,
    "capabilities": [
        {"id": "cap.text.summarise.v1", "description": "Sums a text up", "price_cents": 5}
    ],
    "metadata": {"name": "Summariser"},
}
_MANIFEST_EXAMPLE = {
    "intent": "Sum an article up",
    "nodes": {
        "fetch": {"capabilityId": "cap.web.fetch.v1", "payload": {"url": "https://example.org"}},
        "summary": {
            "capabilityId": "cap.text.summarise.v1",
            "dependsOn": ["fetch"],
            "inputMappings": {"text": "$.fetch.result.body"},
        },
    },
    "settings": {"maxBudgetCredits": 1.5},
}
_NODE = _record(
    "capabilityId",
    capabilityId=_STRING,
    dependsOn={"type": "array", "items": _STRING},
    payload=_OBJECT,
    inputMappings={"type": "object", "additionalProperties": _STRING},
    requiresVerification=_BOOLEAN,
    verifierCapabilityId=_STRING,
    timeoutMs={"type": "integer", "minimum": 1, "description": "milliseconds"},
    maxRetries={"type": "integer", "minimum": 0},
    targetAgentId=_STRING,
    allowBroadcastFallback=_BOOLEAN,
    maxCostCredits=_CREDITS_IN,
)
_MANIFEST = _record(
    "nodes",
    intent=_STRING,
    nodes={"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Node"}},
    trigger=_record("type", type={"enum": ["manual"]}, config=_OBJECT),
    settings=_record(
        maxRuntimeMs=_INTEGER, allowFallbackAgents=_BOOLEAN, maxBudgetCredits=_CREDITS_IN
    ),
    payerDid=_STRING,
    maxCents=_INTEGER,
    dryRun=_BOOLEAN,
)
_NODE_STATE = _record(
    "status",
    status={"enum": [str(status) for status in NodeStatus]},
    result=_OBJECT,
    error=_nullable(_OBJECT),
    agentDid=_nullable(_STRING),
    attempts=_INTEGER,
    startedAt=_nullable(_TIME),
    completedAt=_nullable(_TIME),
    metrics=_record(latency_ms=_INTEGER),
    costCredits=_CREDITS,
)
_WORKFLOW = _record(
    "id workflowId taskId status nodes createdAt",
    id=_STRING,
    workflowId=_STRING,
    taskId=_STRING,
    status={"enum": [str(status) for status in WorkflowStatus]},
    intent=_nullable(_STRING),
    payerDid=_STRING,
    nodes={"type": "object", "additionalProperties": {"$ref": "#/components/schemas/NodeState"}},
    createdAt=_TIME,
    startedAt=_nullable(_TIME),
    completedAt=_nullable(_TIME),
    traceId=_STRING,
    spentCredits=_CREDITS,
    error=_nullable(_OBJECT),
)
_PUBLISHED = _record(
    "workflowId taskId status", workflowId=_STRING, taskId=_STRING, status=_STRING, id=_STRING
)
_PUBLISHED_EXAMPLE = {
    "workflowId": "0199c0de-0000-7000-8000-000000000001",
    "taskId": "0199c0de-0000-7000-8000-000000000002",
    "status": "pending",
}
_ENTRY = _record(
    "id debitAccountId creditAccountId amount description createdAt",
    id=_INTEGER,
    debitAccountId=_INTEGER,
    creditAccountId=_INTEGER,
    amount=_CREDITS,
    description=_STRING,
    workflowId=_STRING,
    nodeId=_STRING,
    createdAt=_TIME,
)
_REGISTRATION = _record(
    "acard",
    acard={"$ref": "#/components/schemas/AgentCard"},
    signingSecret=_STRING,
    acardSignature={"type": "string", "description": "Ed25519 over the JCS form of acard"},
)
_REGISTERED = _record(
    "ok success did registered",
    ok=_BOOLEAN,
    success=_BOOLEAN,
    id=_STRING,
    did=_STRING,
    agentId=_STRING,
    registered={"type": "integer", "description": "capabilities of the card"},
)
_KEY = _record(
    "id keyId ownerDid scopes",
    id=_STRING,
    keyId=_STRING,
    ownerDid=_STRING,
    name=_STRING,
    scopes={"type": "array", "items": _STRING},
    rateClass={"enum": ["standard", "unlimited"]},
    rateLimits=_nullable(_record(read=_INTEGER, write=_INTEGER, bulk=_INTEGER)),
    createdAt=_TIME,
    expiresAt=_nullable(_TIME),
    revokedAt=_nullable(_TIME),
)
_AUDIT = _record(
    "id eventType actorDid targetType targetId action payload hash prevHash createdAt",
    id=_INTEGER,
    eventType=_STRING,
    actorDid=_STRING,
    targetType=_STRING,
    targetId=_STRING,
    action=_STRING,
    payload=_OBJECT,
    hash=_HASH,
    prevHash=_HASH,
    createdAt=_TIME,
)

SCHEMAS: Mapping[str, Schema] = {
    "Problem": _record(
        "type title status detail code error message requestId",
        type=_STRING,
        title=_STRING,
        status=_INTEGER,
        detail=_STRING,
        code=_STRING,
        error=_STRING,
        message=_STRING,
        requestId=_STRING,
        errors={
            "type": "array",
            "items": _record("path got expected", path=_STRING, got=_STRING, expected=_STRING),
        },
    ),
    "AgentCard": _with_example(
        AgentCard.model_json_schema(
            by_alias=True, ref_template="#/components/schemas/AgentCard/$defs/{model}"
        ),
        _CARD_EXAMPLE,
    ),
    "Registration": _with_example(_REGISTRATION, {"acard": _CARD_EXAMPLE}),
    "FlatRegistration": _with_example({"type": "object"}, _CARD_EXAMPLE),
    "BulkRegistration": _with_example(
        _record(
            "agents",
            agents={"type": "array", "items": {"$ref": "#/components/schemas/Registration"}},
        ),
        {"agents": [{"acard": _CARD_EXAMPLE}]},
    ),
    "Registered": _with_example(
        _REGISTERED,
        {"ok": True, "success": True, "did": "did:net:summariser", "registered": 1},
    ),
    "BulkResults": _record(
        "results",
        results={
            "type": "array",
            "items": {"type": "object"},
            "description": "a reply or a problem for each item, in order",
        },
    ),
    "Agent": _record(
        "did endpoint capabilities acard",
        did=_STRING,
        endpoint=_STRING,
        version=_INTEGER,
        capabilities={"type": "array", "items": _OBJECT},
        acard={"$ref": "#/components/schemas/AgentCard"},
        ownerDid=_STRING,
        status=_STRING,
        registeredAt=_TIME,
        updatedAt=_TIME,
    ),
    "AgentList": _list("agents", "Agent"),
    "Node": _NODE,
    "Manifest": _with_example(_MANIFEST, _MANIFEST_EXAMPLE),
    "BulkManifests": _with_example(
        _record(
            "workflows",
            workflows={
                "type": "array",
                "maxItems": 1000,
                "items": {"$ref": "#/components/schemas/Manifest"},
            },
        ),
        {"workflows": [_MANIFEST_EXAMPLE]},
    ),
    "ListManifest": _with_example(
        _record(
            "nodes",
            nodes={
                "type": "array",
                "items": _record(
                    "id capability",
                    id=_STRING,
                    capability=_STRING,
                    input=_OBJECT,
                    targetAgentId=_STRING,
                ),
            },
            edges={"type": "array", "items": _record(**{"from": _STRING, "to": _STRING})},
            maxCents=_INTEGER,
        ),
        {
            "nodes": [
                {"id": "fetch", "capability": "cap.web.fetch.v1", "input": {"url": "x"}},
                {"id": "summary", "capability": "cap.text.summarise.v1"},
            ],
            "edges": [{"from": "fetch", "to": "summary"}],
            "maxCents": 150,
        },
    ),
    "Published": _with_example(_PUBLISHED, _PUBLISHED_EXAMPLE),
    "NodeState": _NODE_STATE,
    "Workflow": _WORKFLOW,
    "WorkflowList": _list("workflows", "Workflow"),
    "Cancellation": _with_example(
        _record(
            reason={
                "enum": ["user_request", "budget_exceeded", "timeout", "error", "policy_violation"]
            },
            details=_STRING,
        ),
        {"reason": "user_request", "details": "not needed any more"},
    ),
    "Cancelled": _record(
        "success workflowId status cancelledAt cancelledBy nodesAffected refundedCredits",
        success=_BOOLEAN,
        workflowId=_STRING,
        status=_STRING,
        cancelledAt=_TIME,
        cancelledBy=_STRING,
        nodesAffected=_INTEGER,
        refundedCredits=_CREDITS,
    ),
    "Balance": _with_example(
        _record(
            "ownerDid balance credits currency pending",
            ownerDid=_STRING,
            balance=_CREDITS,
            credits=_CREDITS,
            currency=_STRING,
            pending={**_CREDITS, "description": "held in escrows of running workflows"},
        ),
        {
            "ownerDid": "did:net:payer",
            "balance": 98.5,
            "credits": 98.5,
            "currency": "CREDITS",
            "pending": 1.5,
        },
    ),
    "DepositRequest": _with_example(
        _record("amount", amount=_CREDITS_IN, ownerDid=_STRING, description=_STRING),
        {"amount": 100},
    ),
    "Deposited": _record(
        "success id entry balance currency",
        success=_BOOLEAN,
        id=_INTEGER,
        entry={"$ref": "#/components/schemas/Entry"},
        balance=_CREDITS,
        currency=_STRING,
    ),
    "Entry": _ENTRY,
    "Transactions": _list("transactions", "Entry"),
    "AuditEntry": _AUDIT,
    "AuditList": _list("entries", "AuditEntry"),
    "KeyRequest": _with_example(
        _record(
            ownerDid=_STRING,
            name=_STRING,
            scopes={"type": "array", "items": _STRING},
            rateClass={"enum": ["standard", "unlimited"]},
            rateLimits=_record(read=_INTEGER, write=_INTEGER, bulk=_INTEGER),
            expiresAt=_TIME,
        ),
        {"ownerDid": "did:net:payer", "name": "laptop", "scopes": ["workflows:write"]},
    ),
    "Key": _KEY,
    "KeyCreated": {
        **_KEY,
        "properties": {**_KEY["properties"], "key": _STRING, "success": _BOOLEAN},
    },
    "KeyList": _list("keys", "Key"),
    "KeyRevoked": _record("success id keyId", success=_BOOLEAN, id=_STRING, keyId=_STRING),
    "Health": _with_example(
        _record("status version components", status=_STRING, version=_STRING, components=_OBJECT),
        {"status": "healthy", "version": "0.1.0", "components": {"ledger": "healthy"}},
    ),
    "Document": {"type": "object", "description": "an OpenAPI 3.1 document"},
    "Page": {"type": "string"},
}
