"""Parses the bids of agents: live bids, and standing bids in agent cards.

Pure. Reference: money.md (Auctions). Decision auctions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from core.errors import Problem
from core.json_bounds import as_whole
from core.money import micro_from_credits
from core.records.manifest_problems import described

ETA_MS_MAX: Final = 30 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Offer:
    """The terms of a live or standing bid.

    `amount_micro`: the bid, micro-credits. `eta_ms`: the time in which the agent promises its
    result, milliseconds. `stake_micro`: the stake that the agent offers, micro-credits; None: as
    much as is required.
    """

    amount_micro: int
    eta_ms: int | None = None
    stake_micro: int | None = None


def parse_offer(raw: Any, path: str = "") -> tuple[Offer | None, list[Problem]]:
    """Parse `bidAmount`, `etaMs?` and `stakeOffered?` of a bid's body or a card's standing bid.

    Args:
        raw: the JSON value of the bid; unknown members are ignored.
        path: the path of this value in the client's input.

    Returns:
        The offer, None if there is a problem, and the list of all problems.

    Reference: money.md (Auctions).
    """
    if type(raw) is not dict:
        return None, [Problem(path or "$", described(raw), "an object with bidAmount")]
    prefix = f"{path}." if path else ""
    problems: list[Problem] = []
    amount_micro = _micro(raw.get("bidAmount"), f"{prefix}bidAmount", problems)
    stake_micro = None
    if raw.get("stakeOffered") is not None:
        stake_micro = _micro(raw["stakeOffered"], f"{prefix}stakeOffered", problems)
    eta_ms, eta_problems = parse_eta(raw, path)
    problems += eta_problems
    if problems or amount_micro is None:
        return None, problems
    return Offer(amount_micro, eta_ms, stake_micro), []


def parse_eta(raw: Mapping[str, Any], path: str = "") -> tuple[int | None, list[Problem]]:
    """Parse `etaMs?`, the promised time, of a bid or of a capability in a card.

    Args:
        raw: the bid or the capability; other members are ignored.
        path: the path of this object in the client's input.

    Returns:
        The promised time in milliseconds, None without a valid one, and the list of problems, which
        has at most one.
    """
    eta_ms = as_whole(raw.get("etaMs"))
    if eta_ms is None or (type(eta_ms) is int and 0 <= eta_ms <= ETA_MS_MAX):
        return eta_ms, []
    expected = f"whole milliseconds, 0 to {ETA_MS_MAX}"
    return None, [Problem(f"{path}.etaMs" if path else "etaMs", described(eta_ms), expected)]


def standing_offers(capabilities: list[Mapping[str, Any]]) -> dict[str, Offer]:
    """Return the valid standing bids of a stored card, by capability id."""
    offers = {}
    for capability in capabilities:
        if capability.get("standingBid") is not None:
            offer = parse_offer(capability["standingBid"])[0]
            if offer is not None:
                offers[capability["id"]] = offer
    return offers


def _micro(value: Any, path: str, problems: list[Problem]) -> int | None:
    try:
        micro = micro_from_credits(value)
    except ValueError:
        micro = -1
    if micro < 0:
        expected = "credits, 0 or more, at most 6 decimals"
        problems.append(Problem(path, described(value), expected))
        return None
    return micro
