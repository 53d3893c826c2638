"""What a publish reserves and holds. Reference: money.md (Estimate)."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

from actors.ports import AskingPrices
from actors.workflows.publish_estimate import estimate_cost
from core.errors import ErrorCode, ServiceError
from core.market.pricing import FixedPrice, TokenPrice
from core.money import MICRO_MAX
from core.records.manifest import parse_manifest
from core.workflow.dag import CompiledNode, compile_workflow
from core.workflow.terms import NO_TERMS

RATES = TokenPrice(Decimal("0.001"), Decimal("0.002"))


class Prices:
    """Knows what capabilities cost, and nothing else of a directory."""

    def __init__(self, **asked: AskingPrices) -> None:
        self._asked = asked
        self.at_peers: dict[str, list[int]] = {}  # prices by the capability's last part
        self.looks: Counter[tuple[str, str | None]] = Counter()

    def asking_prices(
        self, capability_id: str, target_agent_id: str | None, *, payer_did: str
    ) -> AskingPrices:
        """Return what was given for the capability's last part."""
        self.looks[capability_id, target_agent_id] += 1
        return self._asked.get(capability_id.rpartition(".")[2], AskingPrices())

    def available_prices(
        self, capability_id: str, versions: str, at_ms: int, **_of_node: Any
    ) -> AskingPrices:
        """Return the same: all agents can take work."""
        return self._asked.get(capability_id.rpartition(".")[2], AskingPrices())

    def peer_prices(self, _: CompiledNode, capability_id: str, payer_did: str) -> list[int]:
        """Return what was set for the capability's last part."""
        return self.at_peers.get(capability_id.rpartition(".")[2], [])


def offers(*micro: int, by_token: TokenPrice | None = None) -> AskingPrices:
    """Return the prices of agents that each take work at one of these."""
    positive = min((one for one in micro if one), default=None)
    return AskingPrices(None, max(micro), by_token, min(micro), positive)


def found(prices: Prices, nodes: dict[str, dict[str, Any]], **settings: Any) -> Any:
    """Return the estimate of these nodes."""
    manifest = {
        "nodes": {name: {"capabilityId": f"cap.{name}", **node} for name, node in nodes.items()},
        "settings": settings,
    }
    compiled = compile_workflow(parse_manifest(manifest))
    return estimate_cost(compiled, prices)  # type: ignore[arg-type]


def test_case_16_each_node_reserves_its_dearest_agent_and_its_verifier() -> None:
    prices = Prices(a=AskingPrices(None, 70), b=AskingPrices(None, 30), judge=AskingPrices(None, 5))
    nodes = {"a": {"requiresVerification": True, "verifierCapabilityId": "cap.judge"}, "b": {}}
    got = found(prices, nodes)
    assert got.reserved == {"a": 75, "b": 30}
    assert (got.total_micro, got.hold_micro, got.exceeds_budget) == (105, 105, False)
    assert found(prices, nodes, maxBudgetCredits=0.0001).exceeds_budget
    assert found(prices, nodes, maxBudgetCredits=0.001).hold_micro == 1_000


def test_a_registered_price_is_reserved_and_a_limit_lowers_it() -> None:
    prices = Prices(a=AskingPrices(FixedPrice(90)))
    assert found(prices, {"a": {}}).reserved == {"a": 90}
    assert found(prices, {"a": {}}).terms["a"].price == FixedPrice(90)
    assert found(prices, {"a": {"maxCostCredits": 0.00004}}).reserved == {"a": 40}


def test_nodes_by_tokens_share_what_the_others_leave() -> None:
    prices = Prices(
        a=AskingPrices(None, 40), b=AskingPrices(None, None, RATES), c=AskingPrices(RATES)
    )
    got = found(prices, {"a": {}, "b": {}, "c": {}}, maxBudgetCredits=0.000101)
    assert got.reserved == {"a": 40, "b": 31, "c": 30}, "the remainder from the first on"
    assert got.total_micro == 40
    limited = found(prices, {"b": {"maxCostCredits": 0.00002}})
    assert (limited.reserved, limited.hold_micro) == ({"b": 20}, 20)


def test_case_01_the_hold_is_the_budget_if_given_else_the_estimate() -> None:
    prices = Prices(a=AskingPrices(None, 70))
    assert found(prices, {"a": {}}).hold_micro == 70
    assert found(prices, {"a": {}}, maxBudgetCredits=0.0001).hold_micro == 100


def test_case_02_a_registered_price_is_the_reserve_of_an_auction() -> None:
    got = found(Prices(a=AskingPrices(FixedPrice(90), 40)), {"a": {"selection": "auction"}})
    assert (got.reserved, got.total_micro) == ({"a": 90}, 90)


@pytest.mark.parametrize(
    ("price_micro", "cost_micro", "reserve_micro"),
    [(5, None, 5), (None, 7, 7), (5, 7, 5), (8, 7, 7), (0, None, 0)],
)
def test_case_20_the_reserve_is_the_capabilitys_price_within_what_the_node_may_cost(
    price_micro: int | None, cost_micro: int | None, reserve_micro: int
) -> None:
    prices = Prices(a=AskingPrices(None if price_micro is None else FixedPrice(price_micro)))
    limit = {} if cost_micro is None else {"maxCostCredits": f"0.{cost_micro:06}"}
    got = found(prices, {"a": {"selection": "auction", **limit}})
    assert got.terms["a"].reserve_micro == got.reserved["a"] == reserve_micro


def test_case_20_an_auction_without_a_reserve_needs_a_budget_and_gets_a_share_of_it() -> None:
    nodes = {"a": {"selection": "auction"}}
    with pytest.raises(ServiceError) as refused:
        found(Prices(), nodes)
    assert refused.value.code is ErrorCode.BUDGET_REQUIRED
    assert found(Prices(), nodes, maxBudgetCredits=1).terms["a"].reserve_micro == 1_000_000


@pytest.mark.parametrize("settings", [{}, {"maxBudgetCredits": 1}])
def test_case_39_an_estimate_above_what_accounts_hold_is_refused(
    settings: dict[str, int],
) -> None:
    """One price may be as high as the bound; two of them are above it, whatever the budget."""
    prices = Prices(a=AskingPrices(FixedPrice(MICRO_MAX)), b=AskingPrices(FixedPrice(1)))
    assert found(prices, {"a": {}}).total_micro == MICRO_MAX
    with pytest.raises(ServiceError) as refused:
        found(prices, {"a": {}, "b": {}}, **settings)
    assert refused.value.code is ErrorCode.INVALID_MANIFEST
    assert [problem.path for problem in refused.value.problems] == ["nodes"]


def test_case_02_a_cost_without_a_bound_is_refused() -> None:
    with pytest.raises(ServiceError) as refused:
        found(Prices(b=AskingPrices(None, None, RATES)), {"b": {}})
    assert refused.value.code is ErrorCode.BUDGET_REQUIRED
    assert [problem.path for problem in refused.value.problems] == ["nodes.b.maxCostCredits"]


HUGE = 10**15
STRANGER = pytest.mark.parametrize(
    "asked",
    [offers(10, HUGE), offers(10, 30, by_token=RATES), offers(10, HUGE, by_token=RATES)],
    ids=["huge", "tokens", "both"],
)


@STRANGER
def test_row_4_without_a_budget_a_node_holds_three_times_the_lowest_price(
    asked: AskingPrices,
) -> None:
    got = found(Prices(a=asked, b=offers(7)), {"a": {}, "b": {}})
    assert got.reserved == {"a": 30, "b": 7}
    assert (got.total_micro, got.hold_micro, got.exceeds_budget) == (37, 37, False)
    assert [got.terms[name].limit_micro for name in "ab"] == [30, 7]
    assert not got.terms["a"].is_by_token


@STRANGER
def test_row_4_a_budget_is_compared_with_the_cheapest_and_shared(asked: AskingPrices) -> None:
    prices = Prices(a=asked, b=offers(30, HUGE))
    got = found(prices, {"a": {}, "b": {}}, maxBudgetCredits=0.00012)
    assert (got.total_micro, got.reserved) == (40, {"a": 30, "b": 90})
    assert not got.terms.get("a", NO_TERMS).is_by_token
    assert found(prices, {"a": {}, "b": {}}, maxBudgetCredits=0.000039).exceeds_budget
    capped = {"a": {"maxCostCredits": 0.000012}, "b": {}}
    assert found(prices, capped, maxBudgetCredits=0.00012).reserved == {"a": 12, "b": 108}


def test_row_4_no_low_price_lowers_a_limit_of_the_nodes_own() -> None:
    """A stranger asks 1 and declines: the node still has what its payer has named, if that fits."""
    prices, capped = Prices(a=offers(1, 40), b=offers(33)), {"a": {"maxCostCredits": 0.00005}}
    got = found(prices, {**capped, "b": {}}, maxBudgetCredits=0.0002)
    assert (got.total_micro, got.reserved) == (34, {"a": 50, "b": 150})
    got = found(prices, {**capped, "b": {}}, maxBudgetCredits=0.00006)
    assert got.reserved == {"a": 2, "b": 58}, "it does not fit"


def test_row_4_a_limit_of_its_own_is_what_a_huge_offer_reaches() -> None:
    got = found(Prices(a=offers(10, HUGE, by_token=RATES)), {"a": {"maxCostCredits": 0.00005}})
    assert (got.reserved, got.terms["a"].is_by_token) == ({"a": 50}, True)


def test_row_4_a_budget_pays_tokens_where_the_payer_has_named_such_an_agent() -> None:
    class Named(Prices):
        def asking_prices(
            self, capability_id: str, target_agent_id: str | None, *, payer_did: str
        ) -> AskingPrices:
            if target_agent_id == "did:x:t":
                return AskingPrices(None, None, RATES)
            return super().asking_prices(capability_id, target_agent_id, payer_did=payer_did)

    prices = Named(a=offers(10, by_token=RATES))
    for target, is_by_token in (("did:x:t", True), ("did:x:unknown", False)):
        node = {"targetAgentId": target, "allowBroadcastFallback": True}
        got = found(prices, {"a": node}, maxBudgetCredits=1)
        assert got.terms.get("a", NO_TERMS).is_by_token is is_by_token
    free = Prices(a=offers(0, by_token=RATES))
    assert "a" not in found(free, {"a": {}}, maxBudgetCredits=1).terms, "0 is a fixed price"


@pytest.mark.parametrize(
    ("settings", "reserved"), [({}, 15 + 30), ({"maxBudgetCredits": 1}, 10**6)]
)
def test_row_4_a_huge_verifier_is_left_out(settings: dict[str, int], reserved: int) -> None:
    prices = Prices(a=offers(15), judge=offers(10, HUGE))
    node = {"requiresVerification": True, "verifierCapabilityId": "cap.judge"}
    got = found(prices, {"a": node}, **settings)
    assert got.reserved == {"a": reserved}
    assert got.terms["a"].verifier_micro == (10 if settings else 30)


def test_the_agents_of_a_capability_are_looked_at_once() -> None:
    """A thousand nodes for which ten thousand agents offer themselves took 1.6 s of the owner."""
    prices = Prices(a=AskingPrices(None, 70))
    nodes = {f"n{number}": {"capabilityId": "cap.a"} for number in range(20)}
    nodes |= {
        f"t{number}": {**node, "targetAgentId": "did:x:t"}
        for number, node in enumerate(nodes.values())
    }
    assert found(prices, nodes).total_micro == 40 * 70
    assert prices.looks == {("cap.a", None): 1, ("cap.a", "did:x:t"): 1}


def test_peers_count_where_no_agent_offers_the_capability_and_beside_agents() -> None:
    prices = Prices(b=offers(40), judge=AskingPrices(None, 5), r=AskingPrices(FixedPrice(90)))
    prices.at_peers = {"a": [105], "b": [50], "r": [70], "judge": [21]}
    assert found(prices, {"a": {}}).reserved == {"a": 105}
    assert found(prices, {"b": {}}).reserved == {"b": 50}, "the peer may take it, too"
    assert found(prices, {"b": {}}, maxBudgetCredits=0.0001).total_micro == 40
    assert found(prices, {"r": {}}).reserved == {"r": 90}, "a registered price is the limit"
    verified = {"requiresVerification": True, "verifierCapabilityId": "cap.judge"}
    assert found(prices, {"a": verified}).reserved == {"a": 126}
    prices.at_peers["judge"].append(10**12)
    assert found(prices, {"a": verified}).reserved == {"a": 105 + 3 * 21}, "as without a budget"
    prices.at_peers = {"judge": [21]}
    assert found(prices, {"b": verified}).reserved == {"b": 45}
