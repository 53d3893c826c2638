"""The price terms of a workflow's nodes, fixed at its publish.

Terms contain a copy of the capability's registered price, so that a later change of this price
does not affect a running workflow. Each workflow is stored with one JSON text of the reservations
and terms of its nodes. Pure.
Reference: money.md (Estimate, Prices, Per-token prices).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from core.json_text import write_json
from core.market.pricing import Price
from core.message import Message


class NodeTerms(Message, frozen=True):
    """The price terms of one node. Amounts are in micro-credits.

    `price`: the capability's registered price; None without one. `is_by_token`: whether the node's
    agent may be paid by tokens, up to the reservation. `verifier_micro`: the verifier's part of the
    reservation. `reserve_micro`: the auction's reserve; None without an auction. `stake_bps`: the
    stake that a bidder must have, in basis points. `limit_micro`: the price limit that the publish
    fixed for the node's agent; None without one (money.md, Estimate).
    """

    price: Price | None = None
    is_by_token: bool = False
    verifier_micro: int = 0
    reserve_micro: int | None = None
    stake_bps: int = 0
    limit_micro: int | None = None


NO_TERMS: Final = NodeTerms()


_STORED: Final = msgspec.json.Decoder(dict[str, tuple[int, NodeTerms | None]])


def reserved_json(reserved: Mapping[str, int], terms: Mapping[str, NodeTerms]) -> str:
    """Return the text to store: by node name, the reservation and the terms (or null)."""
    return write_json({name: (micro, terms.get(name)) for name, micro in reserved.items()}).decode()


def reserved_from_json(text: str) -> tuple[dict[str, int], dict[str, NodeTerms]]:
    """Return the reservations and the terms, by node, from the text of `reserved_json`."""
    stored = _STORED.decode(text)
    reserved = {name: micro for name, (micro, _) in stored.items()}
    return reserved, {name: known for name, (_, known) in stored.items() if known is not None}
