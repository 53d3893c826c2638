"""Standing bids of agent cards, and the offer that live and standing bids share.

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
    """The terms of a bid, live or standing: micro-credits, milliseconds.

    `stake_micro` None: as much as is required.
    """

    amount_micro: int
    eta_ms: int | None = None
    stake_micro: int | None = None


def parse_offer(raw: Any, path: str = "") -> tuple[Offer | None, list[Problem]]:
    """Parse `bidAmount`, `etaMs?` and `stakeOffered?` of a bid's body or a card's standing bid.

    Args:
        raw: the object; unknown members are ignored.
        path: its path in the client's input.

    Returns: the offer, None when there is a problem, and every problem found.
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
    """Parse the `etaMs?` of a bid, or of a capability in a card: the time that an agent promises.

    Args:
        raw: the object; other members are ignored.
        path: its path in the client's input.

    Returns: milliseconds, None without one, and the problem found.
    """
    eta_ms = as_whole(raw.get("etaMs"))
    if eta_ms is None or (type(eta_ms) is int and 0 <= eta_ms <= ETA_MS_MAX):
        return eta_ms, []
    expected = f"whole milliseconds, 0 to {ETA_MS_MAX}"
    return None, [Problem(f"{path}.etaMs" if path else "etaMs", described(eta_ms), expected)]


def standing_offers(capabilities: list[Mapping[str, Any]]) -> dict[str, Offer]:
    """Return a stored card's valid standing bids by capability."""
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
