"""Registered prices of capabilities, row by row.

Spec: Capability price, Per-token pricing.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import Caller, answer, refusal, unique


def path_of(capability_id: str) -> str:
    """Return where a capability's price is."""
    return f"/v1/capabilities/{capability_id}/price"


def test_a_fixed_price_is_set_replaced_and_read(admin: Caller, payer: Caller) -> None:
    capability_id = unique("cap.test.") + ".v1"
    refusal(payer.http.get(path_of(capability_id)), 404, "NOT_FOUND")
    made = answer(admin.http.put(path_of(capability_id), json={"price_cents": 25}))
    assert made["success"] is True
    assert (made["capabilityId"], made["price_cents"]) == (capability_id, 25)
    read = answer(payer.http.get(path_of(capability_id)))
    assert read == {key: made[key] for key in ("capabilityId", "price_cents", *STAMPS)}
    answer(admin.http.put(path_of(capability_id), json={**read_back(read), "price_cents": 0}))
    assert answer(payer.http.get(path_of(capability_id)))["price_cents"] == 0


STAMPS = ("setByDid", "updatedAt")


def read_back(read: dict[str, Any]) -> dict[str, Any]:
    """Return of a price that was read what may be sent again."""
    return {key: value for key, value in read.items() if key not in STAMPS}


def test_a_price_per_token_is_set_and_read(admin: Caller) -> None:
    capability_id = unique("cap.test.")
    pricing = {"model": "per-token", "inputRate": "0.000001", "outputRate": 0.0000000004}
    made = answer(admin.http.put(path_of(capability_id), json={"pricing": pricing}))
    assert made["pricing"] == {**pricing, "inputRate": 0.000001}
    read = answer(admin.http.get(path_of(capability_id)))
    assert read["pricing"] == made["pricing"]
    assert "price_cents" not in read


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "price_cents"),
        ({"price_cents": -1}, "price_cents"),
        ({"price_cents": 1.5}, "price_cents"),
        ({"price_cents": 10**11 + 1}, "price_cents"),
        ({"price_cents": 1, "priceCents": 1}, "priceCents"),
        ({"price_cents": 1, "capabilityId": "cap.other"}, "capabilityId"),
        ({"price_cents": 1, "pricing": {}}, "pricing"),
        (
            {"pricing": {"model": "per-token", "inputRate": -1, "outputRate": 0}},
            "pricing.inputRate",
        ),
        ({"pricing": {"model": "per-hour", "inputRate": 0, "outputRate": 0}}, "pricing.model"),
    ],
)
def test_a_bad_price_is_400_and_names_the_member(
    admin: Caller, body: dict[str, Any], path: str
) -> None:
    capability_id = unique("cap.test.")
    refused = refusal(admin.http.put(path_of(capability_id), json=body), 400, "INVALID_REQUEST")
    assert refused["errors"][0]["path"] == path
    refusal(admin.http.get(path_of(capability_id)), 404, "NOT_FOUND")


def test_a_name_that_is_no_capability_is_400(admin: Caller) -> None:
    refused = admin.http.put(path_of(".hidden"), json={"price_cents": 1})
    refusal(refused, 400, "INVALID_REQUEST")
