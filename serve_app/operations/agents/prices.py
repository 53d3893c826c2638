"""Registered prices of capabilities: what binds where an agent's card names no price of its own.

Reference: money.md (Prices, Per-token prices). Decision prices-and-budgets: only an administrator
sets them.
"""

from __future__ import annotations

from typing import Any

from core.errors import ErrorCode, Problem, ProblemList, ServiceError
from core.market.pricing import PER_TOKEN, FixedPrice, Price, parse_price
from core.money import MICRO_PER_CENT
from core.records.api.market import Price as RegisteredPrice
from core.records.api.market import PriceRequest, PriceSet
from core.records.api.shape import refused
from core.trust.access import SET_PRICES
from ledger.prices.price_commands import SetPrice
from ledger.prices.price_reads import price_of_row, price_row
from serve_app.http.calls import Call, Json, Operations
from serve_app.operations.views import iso_time

OPERATIONS = Operations("market", "capabilities")


@OPERATIONS.add(
    "PUT",
    "/v1/capabilities/{capability_id}/price",
    scope=SET_PRICES,
    body=PriceRequest,
    reply=PriceSet,
)
async def set_price(call: Call) -> Json:
    """Set the price of a capability (operators)."""
    capability_id = call.path_values["capability_id"]
    price = _price(call.given(PriceRequest), capability_id)
    outcome = await call.commit(
        SetPrice(capability_id=capability_id, price=price), until_known=True
    )
    return {
        "success": True,
        "id": capability_id,
        **_priced(capability_id, price),
        "setByDid": call.caller.did,
        "updatedAt": iso_time(outcome.result["updatedMs"]),
    }


@OPERATIONS.add("GET", "/v1/capabilities/{capability_id}/price", reply=RegisteredPrice)
async def get_price(call: Call) -> Json:
    """Read a capability's registered price."""
    capability_id = call.path_values["capability_id"]
    row = await price_row(call.services.reader, capability_id)
    if row is None:
        detail = f"no registered price for {capability_id}: agents ask the prices of their cards"
        raise ServiceError(ErrorCode.NOT_FOUND, detail)
    return {
        **_priced(capability_id, price_of_row(row)),
        "setByDid": row["set_by_did"],
        "updatedAt": iso_time(row["updated_ms"]),
    }


def _price(body: PriceRequest, capability_id: str) -> Price:
    problems = ProblemList()
    if body.capability_id not in (None, capability_id):
        problems.append(Problem("capabilityId", str(body.capability_id), capability_id))
    members = {"price_cents": body.price_cents, "pricing": body.pricing}
    price, more = parse_price(members, is_required=True)
    problems.extend(more)
    if price is None or problems:
        raise refused(problems)
    return price


def _priced(capability_id: str, price: Price) -> dict[str, Any]:
    """Return the specification's record of a price."""
    if isinstance(price, FixedPrice):
        return {"capabilityId": capability_id, "price_cents": price.micro // MICRO_PER_CENT}
    # At most 15 significant digits, so the double prints as the decimal that was registered.
    rates = {"inputRate": float(price.input_rate), "outputRate": float(price.output_rate)}
    return {"capabilityId": capability_id, "pricing": {"model": PER_TOKEN, **rates}}
