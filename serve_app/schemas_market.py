"""JSON Schemas of the market: prices.

Spec: Capability price, Per-token pricing; contract.md section 6.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.market.pricing import PRICE_CENTS_MAX
from serve_app.schema_parts import BOOLEAN, STRING, TIME, Schema, record, with_example

_RATE: Schema = {"type": ["number", "string"], "description": "credits per token, ≤ 12 decimals"}
_CENTS: Schema = {"type": "integer", "minimum": 0, "maximum": PRICE_CENTS_MAX}
_PRICING = record(
    "model inputRate outputRate",
    model={"const": "per-token"},
    inputRate=_RATE,
    outputRate=_RATE,
)

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
}
