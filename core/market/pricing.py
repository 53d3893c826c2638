"""Prices of nodes: fixed, per token, and the reservations before the tokens are known.

Rates are decimals, costs are whole micro-credits: one exact product and one rounding per node, up,
so that no work is free by rounding. `core/workflow/workflow_state.py` knows the budget that
pays it.
Reference: money.md (Estimate, Prices, Per-token prices). Decision prices-and-budgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, Final, assert_never

import msgspec

from core.errors import Problem
from core.json_bounds import as_whole
from core.json_text import write_json
from core.message import Message
from core.money import MICRO_MAX, MICRO_PER_CENT, MICRO_PER_CREDIT
from core.records.manifest_problems import described

PRICE_CENTS_MAX: Final = MICRO_MAX // MICRO_PER_CENT
# Together at most 15 significant digits: every JSON client keeps such a rate exactly.
RATE_DECIMALS_MAX: Final = 12
RATE_LIMIT: Final = Decimal(1_000)  # credits per token; a rate is below it
# Without a budget a node pays at most this times the lowest positive price that is asked.
LOWEST_PRICE_FACTOR: Final = 3
# And at most this beside an agent that is free: what a stranger asks must not be a wallet's worth.
BESIDE_FREE_MICRO_MAX: Final = 10 * MICRO_PER_CREDIT
# Far beyond a model's tokens in a day; a larger count is invalid.
TOKENS_MAX: Final = 10**9
PER_TOKEN: Final = "per-token"


class FixedPrice(Message, frozen=True):
    """A price known before the work, micro-credits, 0 or more."""

    micro: int


class TokenPrice(Message, frozen=True):
    """Credits per token read and per token written, each 0 or more, at most 12 decimals."""

    input_rate: Decimal
    output_rate: Decimal


Price = FixedPrice | TokenPrice
FREE: Final = FixedPrice(0)
_STORED: Final[msgspec.json.Decoder[Price]] = msgspec.json.Decoder(FixedPrice | TokenPrice)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens an agent reports as read and written."""

    input: int
    output: int


def effective_price(offer: Price | None, capability_price: Price | None) -> Price:
    """Return the price an agent asks: its card's, else the registered one, else none.

    Reference: money.md (Prices, Per-token prices).
    """
    return offer or capability_price or FREE


def asks_price(
    own: Mapping[str, Price | None], registered: Mapping[str, Price], *, has_bid: bool
) -> bool:
    """Say whether an agent asks a price above 0 for any of its capabilities, or bids for nodes.

    Args:
        own: the prices in its card, by capability.
        registered: the capabilities' prices, which count where the card has none.
        has_bid: whether the card has a standing bid, which counts as a price whatever its amount.
    """
    return has_bid or any(
        not is_free(effective_price(own[one], registered.get(one))) for one in own
    )


def is_free(price: Price) -> bool:
    """Say whether work at this price costs nothing."""
    if isinstance(price, FixedPrice):
        return price.micro == 0
    return not price.input_rate and not price.output_rate


def cost_micro(price: Price, tokens: Tokens) -> int:
    """Return the cost of the tokens at a price, rounded up once (money.md, Per-token prices).

    The cost may exceed every bound of the ledger; the caller compares it with the node's limit.
    """
    match price:
        case FixedPrice():
            return price.micro
        case TokenPrice():
            # Fractions, not decimals: a decimal product depends on the ambient precision.
            exact = tokens.input * Fraction(price.input_rate)
            exact += tokens.output * Fraction(price.output_rate)
            exact *= MICRO_PER_CREDIT
            return -(-exact.numerator // exact.denominator)
        case _:
            assert_never(price)


def read_tokens(metrics: Mapping[str, Any]) -> Tokens:
    """Read the token counts from an agent's metrics; an invalid count is 0.

    `tokens_used` alone counts as written. money.md (Per-token prices).
    """
    read = _find_first(metrics, "input_tokens", "inputTokens")
    written = _find_first(metrics, "output_tokens", "outputTokens")
    if read is None and written is None:
        written = _find_first(metrics, "tokens_used", "tokensUsed")
    return Tokens(_read_count(read), _read_count(written))


# -- before the tokens are known ------------------------------------------------------------------


def is_budget_required(
    price: Price | None,
    *,
    is_auction: bool,
    max_cost_micro: int | None,
    budget_micro: int | None,
) -> bool:
    """Say whether a node's cost has no bound, so that its publish is refused (BUDGET_REQUIRED).

    Args:
        price: the node's price: by tokens, fixed, or None without a price.
        is_auction: whether an auction selects the node's agent.
        max_cost_micro: the node's `maxCostCredits`, micro-credits.
        budget_micro: the workflow's `maxBudgetCredits`, micro-credits.

    money.md (Estimate, Auctions).
    """
    if max_cost_micro is not None or budget_micro is not None:
        return False
    return isinstance(price, TokenPrice) or (is_auction and price is None)


def market_limit_micro(
    positive_micro: int | None, dearest_micro: int, *, has_free: bool = False
) -> int:
    """Return what a node may pay at most that has neither a registered price nor a budget.

    A dear offer raises it to three times what another agent asks, and not further.

    Args:
        positive_micro: the lowest price above 0 that is asked, None when all are free.
        dearest_micro: the highest price that is asked.
        has_free: whether an agent takes the node for nothing.

    money.md (Estimate).
    """
    limit_micro = min(LOWEST_PRICE_FACTOR * (positive_micro or 0), dearest_micro)
    return min(limit_micro, BESIDE_FREE_MICRO_MAX) if has_free else limit_micro


def token_reservations(
    hold_micro: int,
    fixed_total_micro: int,
    nodes: Sequence[str],
    own_limits: Mapping[str, int],
    starts: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return the reservation of each node without a fixed price (money.md, Per-token prices).

    A node's own limit is its reservation. The others share the rest of the hold in proportion to
    what they start with; a node that starts with nothing counts as the average of the others, and
    equal starts give equal shares. Each share is rounded down, and the remainder is distributed one
    by one from the first node on.

    Args:
        hold_micro: the workflow's hold, micro-credits.
        fixed_total_micro: the reservations of its nodes of fixed price, micro-credits.
        nodes: names of the nodes without a fixed price, in the workflow's order.
        own_limits: `maxCostCredits` by node name, micro-credits, for those that have one.
        starts: by node name, what it reserves before the rest is shared, micro-credits.
    """
    starts = starts or {}
    reserved = {name: own_limits.get(name, starts.get(name, 0)) for name in nodes}
    left_micro = max(0, hold_micro - fixed_total_micro - sum(reserved.values()))
    sharing = [name for name in nodes if name not in own_limits]
    # A stranger's free offer must not leave a node without a share: 0 counts as the average.
    positive = [reserved[name] for name in sharing if reserved[name]]
    weights = [reserved[name] * len(positive) or sum(positive) or 1 for name in sharing]
    total = sum(weights)
    shares = [left_micro * weight // total for weight in weights]
    rest_micro = left_micro - sum(shares)
    for position, (name, share_micro) in enumerate(zip(sharing, shares, strict=True)):
        reserved[name] += share_micro + (position < rest_micro)
    return reserved


# -- from and to JSON -----------------------------------------------------------------------------


def parse_price(
    member: Mapping[str, Any], path: str = "", *, is_required: bool = False
) -> tuple[Price | None, list[Problem]]:
    """Parse `price_cents` or `pricing` of a card's capability, or of a price request's body.

    Args:
        member: the object; unknown members are ignored.
        path: its path in the client's input.
        is_required: whether a missing price is a problem.

    Returns: the price, None without a valid one, and every problem found.
    Reference: money.md (Prices, Per-token prices).
    """
    prefix = f"{path}." if path else ""
    cents, pricing = as_whole(member.get("price_cents")), member.get("pricing")
    if cents is not None and pricing is not None:
        return None, [
            Problem(f"{prefix}pricing", "both price_cents and pricing", "only one of them")
        ]
    if cents is not None:
        if type(cents) is int and 0 <= cents <= PRICE_CENTS_MAX:
            return FixedPrice(cents * MICRO_PER_CENT), []
        expected = f"whole cents, 0 to {PRICE_CENTS_MAX}"
        return None, [Problem(f"{prefix}price_cents", described(cents), expected)]
    if pricing is not None:
        return _parse_pricing(pricing, f"{prefix}pricing")
    if is_required:
        return None, [Problem(f"{prefix}price_cents", "nothing", "price_cents or pricing")]
    return None, []


def price_json(price: Price) -> str:
    """Return a price in the form that is stored with a node, rates as texts."""
    return write_json(price).decode()


def price_from_json(stored: str) -> Price:
    """Return the price that `price_json` wrote."""
    return _STORED.decode(stored)


def _parse_pricing(pricing: Any, path: str) -> tuple[Price | None, list[Problem]]:
    if type(pricing) is not dict:
        return None, [Problem(path, described(pricing), "an object with model and rates")]
    problems = []
    if pricing.get("model") != PER_TOKEN:
        problems.append(Problem(f"{path}.model", described(pricing.get("model")), f"'{PER_TOKEN}'"))
    rates = {}
    for name in ("inputRate", "outputRate"):
        rate = _rate(pricing.get(name))
        if rate is None:
            expected = (
                f"credits per token, 0 or more, below {RATE_LIMIT},"
                f" at most {RATE_DECIMALS_MAX} decimals"
            )
            problems.append(Problem(f"{path}.{name}", described(pricing.get(name)), expected))
        else:
            rates[name] = rate
    if problems:
        return None, problems
    return TokenPrice(rates["inputRate"], rates["outputRate"]), []


def _rate(value: Any) -> Decimal | None:
    if type(value) not in (int, float, str, Decimal):
        return None
    # repr is the shortest text of this double: the client's text.
    text = repr(value) if type(value) is float else str(value)
    if len(text) > 40 or not text.isascii() or "_" in text or text != text.strip():
        return None
    try:
        rate = Decimal(text)
    except InvalidOperation:
        return None
    if not rate.is_finite() or rate.is_signed() or not 0 <= rate < RATE_LIMIT:
        return None
    # Trailing zeros do not count: the exponent alone would refuse 0.0010000000000000.
    _, digits, exponent = rate.as_tuple()
    assert isinstance(exponent, int)
    while exponent < -RATE_DECIMALS_MAX and digits and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    if exponent < -RATE_DECIMALS_MAX and digits:
        return None
    return Decimal((0, digits or (0,), exponent if digits else 0))


def _find_first(metrics: Mapping[str, Any], *names: str) -> Any:
    return next((metrics[name] for name in names if metrics.get(name) is not None), None)


def _read_count(value: Any) -> int:
    value = as_whole(value)  # some JSON writers add ".0" to every number
    return value if type(value) is int and 0 <= value <= TOKENS_MAX else 0
