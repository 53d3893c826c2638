"""The price terms of a workflow's nodes, fixed at its publish.

They copy a capability's registered price, so that a later change affects no running workflow. One
text per workflow stores each node's reservation and its terms, if any. Pure. Spec: Settlement
rules 1 and 6; money.md (Prices, Per-token prices).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.json_text import read_json, write_json
from core.market.pricing import Price, price_from_json, price_json
from core.message import Message


class NodeTerms(Message, frozen=True):
    """One node's terms.

    `price`: the capability's registered price, None without one. `is_by_token`: the agent may be
    paid by tokens, up to the reservation. `verifier_micro`: the verifier's part of the reservation.
    `reserve_micro`: the auction's reserve, None without an auction. `stake_bps`: the stake required
    of its bidders. `limit_micro`: what its agent may cost at most, None where its reservation says
    so (money.md, Estimate).
    """

    price: Price | None = None
    is_by_token: bool = False
    verifier_micro: int = 0
    reserve_micro: int | None = None
    stake_bps: int = 0
    limit_micro: int | None = None


NO_TERMS: Final = NodeTerms()


def reserved_json(reserved: Mapping[str, int], terms: Mapping[str, NodeTerms]) -> str:
    """Return the stored text: a reservation per node, with its terms if it has any."""
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
        if known.limit_micro is not None:
            stored[name]["limitMicro"] = known.limit_micro
    return write_json(stored).decode()


def reserved_from_json(text: str) -> tuple[dict[str, int], dict[str, NodeTerms]]:
    """Parse the text of `reserved_json`."""
    reserved: dict[str, int] = {}
    terms: dict[str, NodeTerms] = {}
    for name, value in read_json(text).items():
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
            value.get("limitMicro"),
        )
    return reserved, terms
