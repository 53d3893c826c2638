"""JSON Schemas of auctions and bids. Spec: Bid; contract.md section 6."""

from __future__ import annotations

from collections.abc import Mapping

from serve_app.openapi.parts import (
    BOOLEAN,
    CREDITS,
    CREDITS_IN,
    INTEGER,
    STRING,
    TIME,
    Schema,
    nullable,
    record,
    with_example,
)

_BID_MEMBERS: Mapping[str, Schema] = {
    "agentDid": STRING,
    "bidAmount": CREDITS,
    "etaMs": nullable(INTEGER),
    "stakeOffered": nullable({**CREDITS, "description": "credits; null: as much as is asked"}),
    "receivedAt": TIME,
}
_OFFER_MEMBERS: Mapping[str, Schema] = {
    "agentDid": {"type": "string", "description": "the agent; the caller if absent"},
    "bidAmount": CREDITS_IN,
    "etaMs": {"type": "integer", "minimum": 0},
    "stakeOffered": {**CREDITS_IN, "description": "credits; absent: as much as is asked"},
}
_STATUS: Schema = {"enum": ["open", "awarded", "no_bids", "cancelled"]}
_AT = "2026-01-31T12:00:00.000Z"
_BID_EXAMPLE = {
    "agentDid": "did:net:summariser",
    "bidAmount": 0.2,
    "etaMs": 4000,
    "stakeOffered": None,
    "receivedAt": _AT,
}
_ROUND_MEMBERS: Mapping[str, Schema] = {
    "round": INTEGER,
    "status": _STATUS,
    "reserveCredits": {**CREDITS, "description": "the most that is paid; no bid is above it"},
    "stakeBps": INTEGER,
    "openedAt": TIME,
    "closesAt": TIME,
    "closedAt": nullable(TIME),
    "winnerDid": nullable(STRING),
    "priceCredits": nullable(CREDITS),
}
_ROUND_EXAMPLE = {
    "round": 1,
    "status": "awarded",
    "reserveCredits": 1,
    "stakeBps": 1000,
    "openedAt": _AT,
    "closesAt": _AT,
    "closedAt": _AT,
    "winnerDid": "did:net:summariser",
    "priceCredits": 0.3,
}

AUCTION_SCHEMAS: Mapping[str, Schema] = {
    "BidRequest": with_example(
        record("bidAmount", **_OFFER_MEMBERS), {"bidAmount": 0.2, "etaMs": 4000}
    ),
    "TaskBidRequest": with_example(
        record(
            "bidAmount",
            nodeId={"type": "string", "description": "the node, where there are several"},
            **_OFFER_MEMBERS,
        ),
        {"bidAmount": 0.2, "etaMs": 4000},
    ),
    "Bid": with_example(
        record(
            "workflowId nodeId round agentDid bidAmount etaMs stakeOffered receivedAt closesAt",
            workflowId=STRING,
            nodeId=STRING,
            round=INTEGER,
            taskId={"type": "string", "description": "of a bid for a task"},
            **_BID_MEMBERS,
            closesAt=TIME,
            success=BOOLEAN,
        ),
        {
            "success": True,
            "workflowId": "0198c0de-0000-7000-8000-000000000001",
            "nodeId": "summary",
            "round": 1,
            **_BID_EXAMPLE,
            "closesAt": _AT,
        },
    ),
    "Auction": with_example(
        record(
            "workflowId nodeId capabilityId round status reserveCredits stakeBps rounds",
            workflowId=STRING,
            nodeId=STRING,
            capabilityId=STRING,
            **_ROUND_MEMBERS,
            rounds={
                "type": "array",
                "items": record(
                    "round status bids",
                    **_ROUND_MEMBERS,
                    bids=nullable(
                        {
                            "type": "array",
                            "items": record(
                                "agentDid bidAmount isStanding excluded",
                                **_BID_MEMBERS,
                                isStanding=BOOLEAN,
                                excluded=nullable(STRING),
                            ),
                        }
                    ),
                ),
            },
        ),
        {
            "workflowId": "0198c0de-0000-7000-8000-000000000001",
            "nodeId": "summary",
            "capabilityId": "cap.text.summarise.v1",
            **_ROUND_EXAMPLE,
            "rounds": [
                {
                    **_ROUND_EXAMPLE,
                    "bids": [{**_BID_EXAMPLE, "isStanding": False, "excluded": None}],
                }
            ],
        },
    ),
}
