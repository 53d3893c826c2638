"""JSON Schemas of the API, by the names that operations declare.

Descriptions for readers and generators of clients; requests are judged by `core/records` and the
routes. Spec: Resources and their fields; contract.md sections 1, 2, 3 and 6.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.errors import QuarantineCode
from core.workflow.transitions import NodeStatus, WorkflowStatus
from serve_app.openapi.agents import AGENT_SCHEMAS
from serve_app.openapi.auctions import AUCTION_SCHEMAS
from serve_app.openapi.market import MARKET_SCHEMAS
from serve_app.openapi.parts import (
    BALANCE,
    BOOLEAN,
    CREDITS,
    CREDITS_IN,
    HASH,
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
from serve_app.openapi.review import REVIEW_SCHEMAS
from serve_app.openapi.trust import TRUST_SCHEMAS

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
_NODE = record(
    "capabilityId",
    capabilityId=STRING,
    dependsOn={"type": "array", "items": STRING},
    payload=OBJECT,
    inputMappings={"type": "object", "additionalProperties": STRING},
    requiresVerification=BOOLEAN,
    verifierCapabilityId=STRING,
    timeoutMs={"type": "integer", "minimum": 1, "description": "milliseconds"},
    maxRetries={"type": "integer", "minimum": 0},
    targetAgentId=STRING,
    allowBroadcastFallback=BOOLEAN,
    maxCostCredits=CREDITS_IN,
)
_MANIFEST = record(
    "nodes",
    intent=STRING,
    nodes={"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Node"}},
    trigger=record("type", type={"enum": ["manual"]}, config=OBJECT),
    settings=record(maxRuntimeMs=INTEGER, allowFallbackAgents=BOOLEAN, maxBudgetCredits=CREDITS_IN),
    payerDid=STRING,
    maxCents=INTEGER,
    dryRun=BOOLEAN,
)
_NODE_STATE = record(
    "status",
    status={"enum": [str(status) for status in NodeStatus]},
    result=OBJECT,
    resultRef={
        **record("sha256 size", sha256=HASH, size=INTEGER),
        "description": "of a result that the record has no room for: GET …/nodes/{node}/result",
    },
    error=nullable(OBJECT),
    agentDid=nullable(STRING),
    attempts=INTEGER,
    startedAt=nullable(TIME),
    completedAt=nullable(TIME),
    metrics=record(latency_ms=INTEGER),
    costCredits=CREDITS,
)
_WORKFLOW = record(
    "id workflowId taskId status nodes createdAt",
    id=STRING,
    workflowId=STRING,
    taskId=STRING,
    status={"enum": [str(status) for status in WorkflowStatus]},
    intent=nullable(STRING),
    payerDid=STRING,
    nodes={"type": "object", "additionalProperties": {"$ref": "#/components/schemas/NodeState"}},
    createdAt=TIME,
    startedAt=nullable(TIME),
    completedAt=nullable(TIME),
    traceId=STRING,
    spentCredits=CREDITS,
    error=nullable(OBJECT),
    quarantine=nullable(
        record(
            "since code",
            since=TIME,
            code={"enum": [str(code) for code in QuarantineCode]},
        )
    ),
)
_PUBLISHED = record(
    "workflowId taskId status", workflowId=STRING, taskId=STRING, status=STRING, id=STRING
)
_PUBLISHED_EXAMPLE = {
    "workflowId": "0199c0de-0000-7000-8000-000000000001",
    "taskId": "0199c0de-0000-7000-8000-000000000002",
    "status": "pending",
}
_ENTRY = record(
    "id debitAccountId creditAccountId amount description createdAt",
    id=INTEGER,
    debitAccountId=INTEGER,
    creditAccountId=INTEGER,
    amount=CREDITS,
    description=STRING,
    workflowId=STRING,
    nodeId=STRING,
    createdAt=TIME,
)
_KEY = record(
    "id keyId ownerDid scopes",
    id=STRING,
    keyId=STRING,
    ownerDid=STRING,
    name=STRING,
    scopes={"type": "array", "items": STRING},
    rateClass={"enum": ["standard", "unlimited"]},
    rateLimits=nullable(record(read=INTEGER, write=INTEGER, bulk=INTEGER)),
    createdAt=TIME,
    expiresAt=nullable(TIME),
    revokedAt=nullable(TIME),
    parentId={**nullable(STRING), "description": "the key it was made with and ends with"},
)
_AUDIT = record(
    "id eventType actorDid targetType targetId action payload hash prevHash createdAt",
    id=INTEGER,
    eventType=STRING,
    actorDid=STRING,
    targetType=STRING,
    targetId=STRING,
    action=STRING,
    payload={**OBJECT, "description": "`events`: what the command did, first event first"},
    hash=HASH,
    prevHash=HASH,
    createdAt=TIME,
)

SCHEMAS: Mapping[str, Schema] = {
    "Problem": record(
        "type title status detail code error message requestId",
        type=STRING,
        title=STRING,
        status=INTEGER,
        detail=STRING,
        code=STRING,
        error=STRING,
        message=STRING,
        requestId=STRING,
        errors={
            "type": "array",
            "items": record("path got expected", path=STRING, got=STRING, expected=STRING),
        },
    ),
    **AGENT_SCHEMAS,
    **MARKET_SCHEMAS,
    **AUCTION_SCHEMAS,
    **REVIEW_SCHEMAS,
    **TRUST_SCHEMAS,
    "BulkResults": record(
        "results",
        results={
            "type": "array",
            "items": {"type": "object"},
            "description": "a reply or a problem for each item, in order",
        },
    ),
    "Node": _NODE,
    "Manifest": with_example(_MANIFEST, _MANIFEST_EXAMPLE),
    "BulkManifests": with_example(
        record(
            "workflows",
            workflows={
                "type": "array",
                "maxItems": 1000,
                "items": {"$ref": "#/components/schemas/Manifest"},
            },
        ),
        {"workflows": [_MANIFEST_EXAMPLE]},
    ),
    "ListManifest": with_example(
        record(
            "nodes",
            nodes={
                "type": "array",
                "items": record(
                    "id capability",
                    id=STRING,
                    capability=STRING,
                    input=OBJECT,
                    targetAgentId=STRING,
                ),
            },
            edges={"type": "array", "items": record(**{"from": STRING, "to": STRING})},
            maxCents=INTEGER,
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
    "Published": with_example(_PUBLISHED, _PUBLISHED_EXAMPLE),
    "NodeState": _NODE_STATE,
    "Workflow": _WORKFLOW,
    "WorkflowList": listing("workflows", "Workflow"),
    "NodeResult": with_example(
        record(
            "workflowId nodeId resultId",
            workflowId=STRING,
            nodeId=STRING,
            resultId={"type": "string", "description": "as the dispatch named it"},
            status={"enum": ["success", "ok", "error"]},
            result={},
            error=STRING,
            code=STRING,
            metrics=OBJECT,
            agentDid=STRING,
            eventId=STRING,
            signature={
                "type": "string",
                "description": "ed25519: + base64, over nodeId:workflowId:resultHash",
            },
            publicKey={"type": "string", "description": "the key it is signed with"},
        ),
        {
            "workflowId": "0199c0de-0000-7000-8000-000000000001",
            "nodeId": "summary",
            "resultId": "4f" * 32,
            "status": "success",
            "result": {"text": "short"},
        },
    ),
    "ResultOfNode": with_example(
        {"description": "the result as the agent gave it, any JSON value"}, {"text": "short"}
    ),
    "NodeResultTaken": record(
        "success workflowId nodeId attempt status",
        success=BOOLEAN,
        ok=BOOLEAN,
        workflowId=STRING,
        nodeId=STRING,
        attempt=INTEGER,
        status={"enum": [str(status) for status in NodeStatus]},
    ),
    "Cancellation": with_example(
        record(
            reason={
                "enum": ["user_request", "budget_exceeded", "timeout", "error", "policy_violation"]
            },
            details=STRING,
        ),
        {"reason": "user_request", "details": "not needed any more"},
    ),
    "Cancelled": record(
        "success workflowId status cancelledAt cancelledBy nodesAffected refundedCredits",
        success=BOOLEAN,
        workflowId=STRING,
        status={"const": "cancelled"},
        cancelledAt=TIME,
        cancelledBy=STRING,
        nodesAffected=INTEGER,
        refundedCredits=CREDITS,
    ),
    "Resumed": record(
        "success workflowId status resumedAt resumedBy",
        success=BOOLEAN,
        id=STRING,
        workflowId=STRING,
        status={"enum": [str(status) for status in WorkflowStatus]},
        resumedAt=TIME,
        resumedBy=STRING,
    ),
    "Balance": with_example(
        record(
            "ownerDid balance credits currency pending",
            ownerDid=STRING,
            balance=BALANCE,
            credits=BALANCE,
            currency=STRING,
            pending={**BALANCE, "description": "held in escrows of running workflows"},
        ),
        {
            "ownerDid": "did:net:payer",
            "balance": 98.5,
            "credits": 98.5,
            "currency": "CREDITS",
            "pending": 1.5,
        },
    ),
    "DepositRequest": with_example(
        record("amount", amount=CREDITS_IN, ownerDid=STRING, description=STRING),
        {"amount": 100},
    ),
    "Deposited": record(
        "success id entry balance currency",
        success=BOOLEAN,
        id=INTEGER,
        entry={"$ref": "#/components/schemas/Entry"},
        balance=BALANCE,
        currency=STRING,
    ),
    "Entry": _ENTRY,
    "Transactions": listing("transactions", "Entry"),
    "AuditEntry": _AUDIT,
    "AuditList": listing("entries", "AuditEntry"),
    "KeyRequest": with_example(
        {
            **record(
                ownerDid=STRING,
                name=STRING,
                scopes={"type": "array", "items": STRING},
                rateClass={"enum": ["standard", "unlimited"]},
                rateLimits=record(read=INTEGER, write=INTEGER, bulk=INTEGER),
                expiresAt=TIME,
            ),
            "additionalProperties": False,
        },
        {"ownerDid": "did:net:payer", "name": "laptop", "scopes": ["workflows:write"]},
    ),
    "Key": _KEY,
    "KeyCreated": {
        **_KEY,
        "properties": {**_KEY["properties"], "key": STRING, "success": BOOLEAN},
    },
    "KeyList": listing("keys", "Key"),
    "KeyRevoked": record(
        "success id keyId",
        success=BOOLEAN,
        id=STRING,
        keyId=STRING,
        endedKeys={"type": "integer", "description": "this one and all made with it"},
    ),
    "Health": with_example(
        record("status version components", status=STRING, version=STRING, components=OBJECT),
        {"status": "healthy", "version": "0.1.0", "components": {"ledger": "healthy"}},
    ),
    "Document": with_example(
        {"type": "object", "description": "an OpenAPI 3.1 document"}, {"openapi": "3.1.0"}
    ),
    "Page": with_example({"type": "string"}, "<!doctype html>"),
}
