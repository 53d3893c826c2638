"""JSON Schemas of invoices, disputes, feedback and tasks.

Spec: Invoice, Dispute; contract.md section 6.
"""

from __future__ import annotations

from collections.abc import Mapping

from serve_app.openapi.parts import (
    BOOLEAN,
    CREDITS,
    CREDITS_IN,
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

_ID = "0199c0de-0000-7000-8000-000000000001"
_DISPUTE_TYPE: Schema = {
    "enum": ["quality", "timeout", "incorrect_output", "overcharge", "fraud", "other"]
}
_DECISION: Schema = {
    "enum": ["resolved_complainant", "resolved_respondent", "resolved_split", "dismissed"]
}
_INVOICE = record(
    "id invoiceId payerDid subtotalCents protocolFeeCents totalCents status createdAt",
    id=STRING,
    invoiceId=STRING,
    payerDid=STRING,
    periodStart=TIME,
    periodEnd=TIME,
    workflowId=nullable(STRING),
    subtotalCents=INTEGER,
    protocolFeeCents={"type": "integer", "description": "0.3 percent of the subtotal"},
    totalCents=INTEGER,
    currency=STRING,
    status={"enum": ["pending", "paid", "void"]},
    createdAt=TIME,
    settledAt=nullable(TIME),
    settledBy=nullable(STRING),
    success=BOOLEAN,
)
_LINE = record(
    "entryId kind amountCredits",
    entryId=INTEGER,
    kind={"enum": ["payment", "refund"]},
    workflowId=STRING,
    nodeId=STRING,
    amountCredits={**CREDITS, "description": "gross, with the fee; of a refund below 0"},
    createdAt=TIME,
)
_DISPUTE = record(
    "id disputeId complainantDid disputeType description status creditsRefunded createdAt",
    id=STRING,
    disputeId=STRING,
    workflowId=nullable(STRING),
    nodeId=nullable(STRING),
    complainantDid=STRING,
    respondentDid=nullable(STRING),
    disputeType=_DISPUTE_TYPE,
    description=STRING,
    evidence=OBJECT,
    status={"enum": ["open", *_DECISION["enum"]]},
    resolution=nullable(STRING),
    creditsAsked=nullable(CREDITS),
    creditsRefunded=CREDITS,
    creditsShort={**CREDITS, "description": "what nobody could give back"},
    creditsSlashed={**CREDITS, "description": "in the answer to the decision alone"},
    createdAt=TIME,
    resolvedAt=nullable(TIME),
    resolvedBy=nullable(STRING),
    success=BOOLEAN,
)

REVIEW_SCHEMAS: Mapping[str, Schema] = {
    "InvoiceRequest": with_example(
        {
            **record(payerDid=STRING, periodStart=TIME, periodEnd=TIME, workflowId=STRING),
            "oneOf": [{"required": ["periodStart", "periodEnd"]}, {"required": ["workflowId"]}],
        },
        {
            "payerDid": "did:net:payer",
            "periodStart": "2026-01-01T00:00:00Z",
            "periodEnd": "2026-02-01T00:00:00Z",
        },
    ),
    "Invoice": with_example(
        _INVOICE,
        {
            "id": _ID,
            "invoiceId": _ID,
            "payerDid": "did:net:payer",
            "subtotalCents": 500,
            "protocolFeeCents": 2,
            "totalCents": 502,
            "status": "pending",
            "createdAt": "2026-02-01T00:00:00.000Z",
        },
    ),
    "InvoiceWithLines": {
        **_INVOICE,
        "properties": {
            **_INVOICE["properties"],
            "lineCount": INTEGER,
            "lines": {"type": "array", "items": _LINE, "maxItems": 1_000},
        },
    },
    "InvoiceList": listing("invoices", "Invoice"),
    "DisputeRequest": with_example(
        record(
            "disputeType description",
            workflowId={"type": "string", "description": "not needed for fraud and other"},
            nodeId=STRING,
            respondentDid=STRING,
            disputeType=_DISPUTE_TYPE,
            description={"type": "string", "minLength": 10, "maxLength": 10_000},
            evidence=OBJECT,
        ),
        {
            "workflowId": _ID,
            "disputeType": "incorrect_output",
            "description": "The summary is about another article.",
            "evidence": {"expected": "https://example.org"},
        },
    ),
    "Dispute": _DISPUTE,
    "DisputeList": listing("disputes", "Dispute"),
    "Resolution": with_example(
        record(
            "status resolution",
            status=_DECISION,
            resolution={"type": "string", "minLength": 1, "maxLength": 10_000},
            creditsRefunded=CREDITS_IN,
        ),
        {"status": "resolved_split", "resolution": "Half of it was right.", "creditsRefunded": 0.5},
    ),
    "FeedbackRequest": with_example(
        record(
            "rating",
            agentDid=STRING,
            rating={"type": "number", "minimum": 0, "maximum": 5},
            scale={"enum": [1, 5], "description": "what the rating is out of; needed for 1 of 5"},
            comment={"type": "string", "maxLength": 2_000},
        ),
        {"agentDid": "did:net:agent", "rating": 4, "scale": 5, "comment": "quick"},
    ),
    "Feedback": record(
        "workflowId agentDid payerDid rating createdAt",
        workflowId=STRING,
        agentDid=STRING,
        payerDid=STRING,
        rating={"type": "number", "minimum": 0, "maximum": 1},
        comment=nullable(STRING),
        createdAt=TIME,
        success=BOOLEAN,
    ),
    "TaskRequest": with_example(
        record(
            "description",
            description={"type": "string", "minLength": 1, "maxLength": 10_000},
            budget=CREDITS_IN,
            selection={"enum": ["best", "auction"], "description": "in an auction up to `budget`"},
            auctionWindowMs={"type": "integer", "minimum": 0},
        ),
        {"description": "[cap.text.summarise.v1] Sum up https://example.org", "budget": 1},
    ),
    "TaskPublished": record(
        "taskId workflowId status capabilityId",
        id=STRING,
        taskId=STRING,
        workflowId=STRING,
        capabilityId=STRING,
        status=STRING,
        success=BOOLEAN,
    ),
    "Task": record(
        "id taskId workflowId status createdAt",
        id=STRING,
        taskId=STRING,
        workflowId=STRING,
        status={"enum": ["pending", "running", "completed", "failed", "cancelled", "timeout"]},
        description=STRING,
        result={"description": "of the one node; of several, those of the last ones by name"},
        error=nullable(OBJECT),
        agentDid=nullable(STRING),
        metrics=nullable(OBJECT),
        spentCredits=CREDITS,
        createdAt=TIME,
        startedAt=nullable(TIME),
        completedAt=nullable(TIME),
    ),
    "TaskSettlement": record(amount=CREDITS_IN),
    "TaskSettled": record(
        "success taskId workflowId status settledCredits returnedCredits",
        success=BOOLEAN,
        taskId=STRING,
        workflowId=STRING,
        status={"const": "settled"},
        settledCredits=CREDITS,
        returnedCredits=CREDITS,
    ),
}
