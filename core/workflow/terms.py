"""What a workflow's nodes were promised to cost when it was published, beyond one fixed number.

A capability's registered price is copied here, so that changing it later changes no running
workflow. Stored as one text with the workflow: by node, what is reserved, and its terms where it
has any. Pure. Spec: Settlement rules 1 and 6; money.md case 17 and R3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from core.market.pricing import Price, price_from_json, price_json
from core.message import Message


class NodeTerms(Message, frozen=True):
    """One node's terms.

    `price`: the capability's registered price, None where it had none. `is_by_token`: its agent may
    be paid by tokens, up to what is reserved. `verifier_micro`: the verifier's part of that.
    `reserve_micro`: the most that its auction pays, `stake_bps` what it asks of bidders' stakes;
    None where there is no auction.
    """

    price: Price | None = None
    is_by_token: bool = False
    verifier_micro: int = 0
    reserve_micro: int | None = None
    stake_bps: int = 0


NO_TERMS: Final = NodeTerms()


def reserved_json(reserved: Mapping[str, int], terms: Mapping[str, NodeTerms]) -> str:
    """Return what is stored: a number per node, or its number and its terms."""
    stored: dict[str, Any] = {}
    for name, micro in reserved.items():
        known = terms.get(name)
        if known is None:
            stored[name] = micro
            continue
        stored[name] = {
            "micro": micro,
            "price": None if known.price is None else price_json(known.price),
            "isByToken": known.is_by_token,
            "verifierMicro": known.verifier_micro,
        }
        if known.reserve_micro is not None:
            stored[name] |= {"reserveMicro": known.reserve_micro, "stakeBps": known.stake_bps}
    return orjson.dumps(stored).decode()


def reserved_from_json(text: str) -> tuple[dict[str, int], dict[str, NodeTerms]]:
    """Return what `reserved_json` wrote."""
    reserved: dict[str, int] = {}
    terms: dict[str, NodeTerms] = {}
    for name, value in orjson.loads(text).items():
        if type(value) is int:
            reserved[name] = value
            continue
        reserved[name] = value["micro"]
        price = value["price"]
        terms[name] = NodeTerms(
            None if price is None else price_from_json(price),
            value["isByToken"],
            value["verifierMicro"],
            value.get("reserveMicro"),
            value.get("stakeBps", 0),
        )
    return reserved, terms
