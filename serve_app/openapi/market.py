"""JSON Schemas of the market: prices, accounts, stakes, reputation, quotas.

Spec: Ledger records, Quota check result; contract.md section 6.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.market.pricing import PRICE_CENTS_MAX
from serve_app.openapi.parts import (
    BALANCE,
    BOOLEAN,
    CREDITS,
    CREDITS_IN,
    INTEGER,
    STRING,
    TIME,
    Schema,
    listing,
    nullable,
    record,
    with_example,
)

_RATE: Schema = {"type": ["number", "string"], "description": "credits per token, ≤ 12 decimals"}
_CENTS: Schema = {"type": "integer", "minimum": 0, "maximum": PRICE_CENTS_MAX}
_PRICING = record(
    "model inputRate outputRate",
    model={"const": "per-token"},
    inputRate=_RATE,
    outputRate=_RATE,
)
_ENTRY_MEMBERS: Mapping[str, Schema] = {
    "id": INTEGER,
    "debitAccountId": INTEGER,
    "creditAccountId": INTEGER,
    "amount": CREDITS,
    "kind": STRING,
    "description": STRING,
    "workflowId": STRING,
    "nodeId": STRING,
    "createdAt": TIME,
}
_STAKE_MEMBERS: Mapping[str, Schema] = {
    "agentDid": STRING,
    "stakedAmount": CREDITS,
    "lockedAmount": {**CREDITS, "description": "the part that running work may cost the agent"},
    "currency": STRING,
    "updatedAt": nullable(TIME),
}
_STAKE_EXAMPLE = {
    "agentDid": "did:net:summariser",
    "stakedAmount": 10,
    "lockedAmount": 2.5,
    "currency": "CREDITS",
    "updatedAt": "2026-01-31T12:00:00.000Z",
}
_COUNTS = record(
    "successful failed cancelled latencyMs",
    successful=INTEGER,
    failed=INTEGER,
    cancelled=INTEGER,
    latencyMs=INTEGER,
)
_RATIO: Schema = {"type": "number", "minimum": 0, "maximum": 1}
_LIMIT: Schema = nullable({"type": "integer", "minimum": 0})
_LIMIT_MEMBERS: Mapping[str, Schema] = {
    "maxWorkflowsPerDay": _LIMIT,
    "maxConcurrentWorkflows": _LIMIT,
    "maxSpendPerDayCents": _LIMIT,
}
_USAGE = record(
    "dailyWorkflows dailySpendCents concurrentWorkflows",
    dailyWorkflows=INTEGER,
    dailySpendCents=INTEGER,
    concurrentWorkflows=INTEGER,
)
_LIMITS_EXAMPLE = {
    "maxWorkflowsPerDay": 100,
    "maxConcurrentWorkflows": 10,
    "maxSpendPerDayCents": 5000,
}
_USAGE_EXAMPLE = {"dailyWorkflows": 12, "dailySpendCents": 740, "concurrentWorkflows": 2}

MARKET_SCHEMAS: Mapping[str, Schema] = {
    "PriceRequest": with_example(
        {
            **record(capabilityId=STRING, price_cents=_CENTS, pricing=_PRICING),
            "additionalProperties": False,
            "oneOf": [{"required": ["price_cents"]}, {"required": ["pricing"]}],
        },
        {"price_cents": 25},
    ),
    "CapabilityPrice": with_example(
        record(
            "capabilityId setByDid updatedAt",
            capabilityId=STRING,
            price_cents=_CENTS,
            pricing=_PRICING,
            setByDid=STRING,
            updatedAt=TIME,
            id=STRING,
            success=BOOLEAN,
        ),
        {
            "capabilityId": "cap.text.summarise.v1",
            "pricing": {"model": "per-token", "inputRate": 0.000001, "outputRate": 0.000004},
            "setByDid": "did:net:admin",
            "updatedAt": "2026-01-31T12:00:00.000Z",
        },
    ),
    "Account": with_example(
        record(
            "id ownerDid balance currency createdAt",
            id=INTEGER,
            ownerDid=STRING,
            balance=BALANCE,
            currency=STRING,
            createdAt=TIME,
        ),
        {
            "id": 3,
            "ownerDid": "did:net:payer",
            "balance": 98.5,
            "currency": "CREDITS",
            "createdAt": "2026-01-31T12:00:00.000Z",
        },
    ),
    "HistoryEvent": record(
        "id type amount change createdAt",
        **_ENTRY_MEMBERS,
        type=STRING,
        change={**CREDITS, "description": "what it did to the wallet; 0 within the stake"},
    ),
    "History": listing("events", "HistoryEvent"),
    "Escrow": with_example(
        record(
            "workflow_id payer_did amount status",
            workflow_id=STRING,
            payer_did=STRING,
            amount=CREDITS,
            status={"enum": ["held", "released"]},
            remaining=CREDITS,
            currency=STRING,
            feeBps=INTEGER,
            createdAt=TIME,
            releasedAt=nullable(TIME),
        ),
        {
            "workflow_id": "0199c0de-0000-7000-8000-000000000001",
            "payer_did": "did:net:payer",
            "amount": 1.5,
            "status": "held",
            "remaining": 0.5,
            "currency": "CREDITS",
            "feeBps": 500,
            "createdAt": "2026-01-31T12:00:00.000Z",
            "releasedAt": None,
        },
    ),
    "Budget": with_example(
        record(
            "payerDid maxCents spentCents remainingCents heldCredits",
            workflowId=STRING,
            payerDid=STRING,
            maxCents=INTEGER,
            spentCents=INTEGER,
            remainingCents=INTEGER,
            heldCredits=CREDITS,
        ),
        {
            "workflowId": "0199c0de-0000-7000-8000-000000000001",
            "payerDid": "did:net:payer",
            "maxCents": 150,
            "spentCents": 100,
            "remainingCents": 50,
            "heldCredits": 0.5,
        },
    ),
    "StakeRequest": with_example(
        {
            **record("amount", amount=CREDITS_IN, agentDid=STRING),
            "additionalProperties": False,
        },
        {"amount": 10, "agentDid": "did:net:summariser"},
    ),
    "Stake": with_example(
        record("agentDid stakedAmount lockedAmount updatedAt", **_STAKE_MEMBERS), _STAKE_EXAMPLE
    ),
    "StakeMoved": with_example(
        record(
            "success agentDid stakedAmount lockedAmount updatedAt",
            **_STAKE_MEMBERS,
            success=BOOLEAN,
            id=STRING,
            walletDid={**STRING, "description": "whose wallet it came from or went to"},
            balance=BALANCE,
        ),
        {"success": True, **_STAKE_EXAMPLE, "walletDid": "did:net:summariser", "balance": 3},
    ),
    "SlashRequest": with_example(
        {
            **record(
                "agentDid workflowId nodeId reason",
                agentDid=STRING,
                workflowId=STRING,
                nodeId=STRING,
                reason={"type": "string", "minLength": 1, "maxLength": 1_000},
            ),
            "additionalProperties": False,
        },
        {
            "agentDid": "did:net:summariser",
            "workflowId": "0199c0de-0000-7000-8000-000000000001",
            "nodeId": "summarise",
            "reason": "It sells what it is given to read.",
        },
    ),
    "StakeSlashed": with_example(
        record(
            "success agentDid workflowId nodeId payerDid creditsSlashed stakedAmount lockedAmount",
            **{name: schema for name, schema in _STAKE_MEMBERS.items() if name != "updatedAt"},
            success=BOOLEAN,
            id=STRING,
            workflowId=STRING,
            nodeId=STRING,
            payerDid={**STRING, "description": "whose wallet it went to"},
            creditsSlashed=CREDITS,
        ),
        {
            "success": True,
            "agentDid": "did:net:summariser",
            "workflowId": "0199c0de-0000-7000-8000-000000000001",
            "nodeId": "summarise",
            "payerDid": "did:net:payer",
            "creditsSlashed": 2.5,
            "stakedAmount": 7.5,
            "lockedAmount": 0,
            "currency": "CREDITS",
        },
    ),
    "ReputationRebuild": with_example(record("", check=BOOLEAN), {"check": True}),
    "ReputationCompared": with_example(
        record(
            "success isSame agents differences rebuilt",
            success=BOOLEAN,
            isSame=BOOLEAN,
            agents=INTEGER,
            differences={
                "type": "array",
                "items": record(
                    "agentDid stored found", agentDid=STRING, stored=_COUNTS, found=_COUNTS
                ),
            },
            rebuilt=INTEGER,
        ),
        {"success": True, "isSame": True, "agents": 12, "differences": [], "rebuilt": 0},
    ),
    "Reputation": with_example(
        record(
            "agentDid overallScore successRate avgLatencyMs totalTasks successfulTasks failedTasks"
            " cancelledTasks",
            agentDid=STRING,
            overallScore=_RATIO,
            successRate=_RATIO,
            completionRate=_RATIO,
            avgLatencyMs=nullable(INTEGER),
            totalTasks=INTEGER,
            successfulTasks=INTEGER,
            failedTasks=INTEGER,
            cancelledTasks=INTEGER,
            updatedAt=nullable(TIME),
        ),
        {
            "agentDid": "did:net:summariser",
            "overallScore": 0.889,
            "successRate": 0.9,
            "completionRate": 1,
            "avgLatencyMs": 12000,
            "totalTasks": 10,
            "successfulTasks": 9,
            "failedTasks": 1,
            "cancelledTasks": 0,
            "updatedAt": "2026-01-31T12:00:00.000Z",
        },
    ),
    "QuotaRequest": with_example(
        {
            **record(**_LIMIT_MEMBERS),
            "additionalProperties": False,
            "description": "absent members keep their value, null lifts one",
        },
        _LIMITS_EXAMPLE,
    ),
    "Quota": record(
        "id did limits",
        id=STRING,
        did=STRING,
        **_LIMIT_MEMBERS,
        limits=nullable(record(**_LIMIT_MEMBERS)),
        currentUsage=_USAGE,
        resetsAt=TIME,
        setByDid=nullable(STRING),
        updatedAt=nullable(TIME),
        success=BOOLEAN,
    ),
    "QuotaCheckRequest": with_example(
        {
            **record(estimatedSpendCents={"type": "integer", "minimum": 0}),
            "additionalProperties": False,
        },
        {"estimatedSpendCents": 150},
    ),
    "QuotaCheck": with_example(
        record(
            "allowed reason currentUsage limits resetsAt",
            allowed=BOOLEAN,
            reason=STRING,
            currentUsage=_USAGE,
            limits=nullable(record(**_LIMIT_MEMBERS)),
            resetsAt=TIME,
        ),
        {
            "allowed": True,
            "reason": "Within quota",
            "currentUsage": _USAGE_EXAMPLE,
            "limits": _LIMITS_EXAMPLE,
            "resetsAt": "2026-02-01T00:00:00.000Z",
        },
    ),
}
