"""Prices of nodes: fixed prices, prices per token, and reservations of nodes paid by tokens.

Rates are decimals, and costs are whole micro-credits. The cost of a node is computed exactly and
then rounded up once, so that no work becomes free by rounding. The budget of a workflow is in
`core/workflow/workflow_state.py`.
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
# With these two bounds, a rate has at most 15 significant digits. Every JSON client stores it
# exactly. A rate is below `RATE_LIMIT` credits per token.
RATE_DECIMALS_MAX: Final = 12
RATE_LIMIT: Final = Decimal(1_000)
# Without a budget, a node pays at most this factor times the lowest price above 0 that an agent
# asks.
LOWEST_PRICE_FACTOR: Final = 3
# If an agent also offers the node for nothing, the node pays at most this much. Without this limit,
# a single unknown agent with a high price could empty a wallet.
BESIDE_FREE_MICRO_MAX: Final = 10 * MICRO_PER_CREDIT
# Far more than a model processes in a day; a larger count is invalid.
TOKENS_MAX: Final = 10**9
PER_TOKEN: Final = "per-token"


class FixedPrice(Message, frozen=True):
    """A price that is known before the work, micro-credits, 0 or more."""

    micro: int


class TokenPrice(Message, frozen=True):
    """Rates in credits per input token and per output token.

    Each rate is 0 or more and has at most 12 decimals.
    """

    input_rate: Decimal
    output_rate: Decimal


Price = FixedPrice | TokenPrice
FREE: Final = FixedPrice(0)
_STORED: Final[msgspec.json.Decoder[Price]] = msgspec.json.Decoder(FixedPrice | TokenPrice)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The numbers of input and output tokens that an agent reports."""

    input: int
    output: int


def effective_price(offer: Price | None, capability_price: Price | None) -> Price:
    """Return the price that an agent asks for a capability.

    Args:
        offer: the price in the agent's card; it counts first.
        capability_price: the registered price of the capability; it counts without an `offer`.

    Returns:
        The price; `FREE` if both are None.

    Reference: money.md (Prices, Per-token prices).
    """
    return offer or capability_price or FREE


def asks_price(
    own: Mapping[str, Price | None], registered: Mapping[str, Price], *, has_bid: bool
) -> bool:
    """Return whether an agent asks a price above 0 for a capability, or bids for nodes.

    Args:
        own: the prices in the agent's card, by capability.
        registered: the registered prices, by capability; they count where the card has no price.
        has_bid: whether the card has a standing bid. A bid of any amount counts as a price.
    """
    return has_bid or any(
        not is_free(effective_price(own[one], registered.get(one))) for one in own
    )


def is_free(price: Price) -> bool:
    """Return whether work at this price costs nothing."""
    if isinstance(price, FixedPrice):
        return price.micro == 0
    return not price.input_rate and not price.output_rate


def cost_micro(price: Price, tokens: Tokens) -> int:
    """Return the cost of the tokens at a price, micro-credits, rounded up once.

    The cost may be above the ledger's largest amount. The caller compares it with the node's limit.

    Reference: money.md (Per-token prices).
    """
    match price:
        case FixedPrice():
            return price.micro
        case TokenPrice():
            # Fractions, because the product of decimals depends on the decimal context's precision.
            exact = tokens.input * Fraction(price.input_rate)
            exact += tokens.output * Fraction(price.output_rate)
            exact *= MICRO_PER_CREDIT
            return -(-exact.numerator // exact.denominator)
        case _:
            assert_never(price)


def read_tokens(metrics: Mapping[str, Any]) -> Tokens:
    """Read the token counts from an agent's metrics; an invalid or missing count is 0.

    If the metrics have neither an input nor an output count, `tokens_used` is the output count.

    Reference: money.md (Per-token prices).
    """
    read = _find_first(metrics, "input_tokens", "inputTokens")
    written = _find_first(metrics, "output_tokens", "outputTokens")
    if read is None and written is None:
        written = _find_first(metrics, "tokens_used", "tokensUsed")
    return Tokens(_read_count(read), _read_count(written))


# -- limits and reservations, before the tokens are known ------------------------------------------


def is_budget_required(
    price: Price | None,
    *,
    is_auction: bool,
    max_cost_micro: int | None,
    budget_micro: int | None,
) -> bool:
    """Return whether a node's cost has no bound; such a publish is refused (BUDGET_REQUIRED).

    Args:
        price: the node's price, None without one.
        is_auction: whether an auction selects the node's agent.
        max_cost_micro: the node's `maxCostCredits`, micro-credits; None without one.
        budget_micro: the workflow's `maxBudgetCredits`, micro-credits; None without one.

    Reference: money.md (Estimate, Auctions).
    """
    if max_cost_micro is not None or budget_micro is not None:
        return False
    return isinstance(price, TokenPrice) or (is_auction and price is None)


def market_limit_micro(
    positive_micro: int | None, dearest_micro: int, *, has_free: bool = False
) -> int:
    """Return the price limit of a node that has neither a registered price nor a budget.

    The limit is the highest price that an agent asks, but at most three times the lowest price
    above 0. If an agent takes the node for nothing, the limit is also at most 10 credits.

    Args:
        positive_micro: the lowest price above 0 that an agent asks, micro-credits; None if all
            agents are free.
        dearest_micro: the highest price that an agent asks, micro-credits.
        has_free: whether an agent takes the node for nothing.

    Reference: money.md (Estimate).
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
    """Return the reservation of each node without a fixed price, micro-credits by node name.

    A node with an own limit reserves this limit. Each other node reserves its amount in `starts`
    and a share of the rest of the hold. The shares are proportional to the amounts in `starts`; for
    the proportion, an amount of 0 counts as the average of the positive amounts. Shares are rounded
    down. The remaining micro-credits are added one by one, beginning with the first node.

    Args:
        hold_micro: the workflow's hold, micro-credits.
        fixed_total_micro: the sum of the reservations of the nodes with a fixed price,
            micro-credits.
        nodes: names of the nodes without a fixed price, in the workflow's order.
        own_limits: `maxCostCredits` by node name, micro-credits, for the nodes that have it.
        starts: the amount that a node reserves before the rest is shared, micro-credits by node
            name; 0 for a node that is not listed.

    Reference: money.md (Per-token prices).
    """
    starts = starts or {}
    reserved = {name: own_limits.get(name, starts.get(name, 0)) for name in nodes}
    left_micro = max(0, hold_micro - fixed_total_micro - sum(reserved.values()))
    sharing = [name for name in nodes if name not in own_limits]
    # 0 counts as the average. Otherwise an unknown agent's free offer would leave a node no share.
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
    """Parse `price_cents` or `pricing` of a capability in a card, or of a price request's body.

    Args:
        member: the object that has the price; unknown members are ignored.
        path: the path of the object in the client's input.
        is_required: whether a missing price is a problem.

    Returns:
        The price, None without a valid one, and the list of all problems.

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
    """Return a price as the JSON text that is stored with a node; rates are strings."""
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
    # repr returns the shortest text of a double: the digits that the client sent.
    text = repr(value) if type(value) is float else str(value)
    if len(text) > 40 or not text.isascii() or "_" in text or text != text.strip():
        return None
    try:
        rate = Decimal(text)
    except InvalidOperation:
        return None
    if not rate.is_finite() or rate.is_signed() or not 0 <= rate < RATE_LIMIT:
        return None
    # Ignore trailing zeros, so that 0.0010000000000000 is accepted.
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
