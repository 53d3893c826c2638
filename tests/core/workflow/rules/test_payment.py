"""What attempts cost: by tokens within their reservation, and registered prices as they were.

Reference: money.md (Prices, Per-token prices, Budgets and holds, Settlement).
"""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.market.pricing import FixedPrice, TokenPrice
from core.workflow.terms import NodeTerms, reserved_from_json, reserved_json
from tests.core.workflow.engine import Engine, chain, engine
from tests.core.workflow.stake_book import StakeBook

CAPABILITY = "cap.work"
# 2 micro-credits per token read, 5 per token written.
RATES = TokenPrice(Decimal("0.000002"), Decimal("0.000005"))
BY_TOKEN = NodeTerms(RATES, is_by_token=True)


def by_tokens(
    names: str = "a",
    *,
    reserved: int = 1_000,
    hold: int = 1_000,
    stakes: StakeBook | None = None,
    **node: object,
) -> Engine:
    """Return a chain whose agent is paid by tokens."""
    return engine(
        chain(*names, **node),
        agents={CAPABILITY: {"did:x:meter": RATES}, "cap.verify.generic.v1": {"did:x:judge": 50}},
        hold_micro=hold,
        reserved=dict.fromkeys(names, reserved),
        terms=dict.fromkeys(names, BY_TOKEN),
        stakes=stakes or StakeBook(),
    )


def test_tokens_are_paid_and_the_rest_of_the_reservation_is_free_again() -> None:
    run = by_tokens("ab", reserved=500, hold=1_000)
    assert run.rows["a"].price_micro == 500, "until the tokens are known"
    run.succeed("a", input_tokens=100, output_tokens=20)
    assert run.payments["a"].gross_micro == 300
    assert run.rows["a"].price_micro == run.rows["a"].cost_micro == 300
    assert run.selections[-1].price_max_micro == 700, "what a did not use, b may"


def test_an_agent_paid_by_tokens_locks_at_most_its_reservation() -> None:
    """Not what the payer has left besides (money.md, Slashing)."""
    run = by_tokens("a", reserved=100, hold=1_000, stakes=StakeBook(700))
    assert run.rows["a"].stake_micro == 100


def test_tokens_above_the_reservation_are_paid_out_of_unreserved_money() -> None:
    run = by_tokens("a", reserved=100, hold=1_000)
    run.succeed("a", input_tokens=500)
    assert run.payments["a"].gross_micro == 1_000
    assert run.status == "success"


def test_a_limit_of_its_own_is_never_exceeded() -> None:
    run = by_tokens("a", reserved=100, hold=10_000, maxCostCredits=0.0001)
    run.succeed("a", input_tokens=51)
    assert run.error_code("a") == "BUDGET_EXCEEDED"


@pytest.mark.parametrize(
    ("named", "paid"), [(10**9, 500), (500, 500), (120, 120), (1, 1), (None, 500)]
)
@pytest.mark.parametrize("is_verified", [False, True])
def test_a_payer_that_ends_an_accepted_attempt_pays_what_it_names_for_tokens(
    named: int | None, paid: int, is_verified: bool
) -> None:
    """Its agent has told of no tokens; nothing is verified, and what is left of it is b's."""
    run = by_tokens("ab", reserved=500, hold=1_000, requiresVerification=is_verified)
    run.accept_later("a")
    run.settle("a", named)
    assert (run.statuses()["a"], run.payments["a"].gross_micro) == ("success", paid)
    assert run.rows["a"].price_micro == run.rows["a"].cost_micro == paid
    assert run.selections[-1].node == "b"
    assert run.selections[-1].price_max_micro == 1_000 - paid


@pytest.mark.parametrize(
    ("price", "named", "paid"),
    [(0, 3, 3), (0, None, 0), (2, 3, 3), (2, 1, 2), (2, None, 2), (2, 5, 5), (2, 6, 5)],
)
def test_a_payer_pays_at_least_what_was_promised_and_at_most_the_hold(
    price: int, named: int | None, paid: int
) -> None:
    run = engine(chain("a"), agents={CAPABILITY: {"did:x:a": price}}, hold_micro=5)
    run.accept_later("a")
    run.settle("a", named)
    assert run.statuses() == {"a": "success"}
    assert sum(payment.gross_micro for payment in run.payments.values()) == paid


def test_no_tokens_cost_nothing() -> None:
    run = by_tokens("a")
    run.succeed("a")
    assert (run.status, run.payments) == ("success", {})


def test_the_verifiers_part_is_not_the_agents() -> None:
    run = engine(
        chain("a", requiresVerification=True),
        agents={CAPABILITY: {"did:x:meter": RATES}, "cap.verify.generic.v1": {"did:x:judge": 50}},
        hold_micro=150,
        reserved={"a": 150},
        terms={"a": NodeTerms(RATES, is_by_token=True, verifier_micro=50)},
    )
    assert run.rows["a"].price_micro == 100
    run.succeed("a", input_tokens=50)
    run.judge("a", approved=True)
    assert {line: paid.gross_micro for line, paid in run.payments.items()} == {
        "a": 100,
        "a#verify": 50,
    }


def test_an_agent_paid_by_tokens_is_no_candidate_for_a_node_of_fixed_price() -> None:
    run = engine(chain("a"), agents={CAPABILITY: {"did:x:meter": RATES}}, reserved={"a": 10})
    assert run.status == "failed"


prices = st.one_of(
    st.none(),
    st.builds(FixedPrice, st.integers(0, 10**15)),
    st.builds(
        TokenPrice,
        st.decimals(0, 999, places=12),
        st.decimals(0, 999, places=12),
    ),
)
limits = st.none() | st.integers(0, 10**15)
node_terms = st.builds(NodeTerms, prices, st.booleans(), st.integers(0, 10**15), limit_micro=limits)


@given(
    st.dictionaries(st.text(max_size=5), st.tuples(st.integers(0, 10**15), st.none() | node_terms))
)
def test_what_is_stored_with_a_workflow_comes_back(
    nodes: dict[str, tuple[int, NodeTerms | None]],
) -> None:
    reserved = {name: micro for name, (micro, _) in nodes.items()}
    terms = {name: known for name, (_, known) in nodes.items() if known is not None}
    assert reserved_from_json(reserved_json(reserved, terms)) == (reserved, terms)
