"""The split of a payment. Reference: money.md (Fees)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from core.market.settlement import gross_of, split_payment
from core.money import MICRO_MAX


@given(
    st.integers(min_value=0, max_value=MICRO_MAX),
    st.integers(min_value=0, max_value=10_000),
)
def test_parts_sum_to_the_whole_and_the_fee_never_exceeds_its_rate(gross: int, bps: int) -> None:
    split = split_payment(gross, bps)
    assert split.agent_micro + split.fee_micro == gross
    assert split.agent_micro >= 0
    assert split.fee_micro * 10_000 <= gross * bps < (split.fee_micro + 1) * 10_000


@given(st.integers(min_value=0, max_value=10**9))
def test_node_payment_split_is_exactly_95_to_5_on_whole_cents(cents: int) -> None:
    split = split_payment(cents * 10_000, 500)
    assert split.fee_micro == cents * 500
    assert split.agent_micro == cents * 9_500


@given(
    st.integers(min_value=0, max_value=MICRO_MAX),
    st.integers(min_value=0, max_value=9_999),
)
def test_the_gross_payment_leaves_exactly_the_net_one(net: int, bps: int) -> None:
    assert split_payment(gross_of(net, bps), bps).agent_micro == net


@given(
    st.integers(min_value=0, max_value=MICRO_MAX),
    st.integers(min_value=0, max_value=9_999),
    st.data(),
)
def test_what_was_agreed_with_a_peer_covers_every_charge_within_it(
    reserved: int, bps: int, data: st.DataObject
) -> None:
    agreed = split_payment(reserved, bps).agent_micro
    charged = data.draw(st.integers(min_value=0, max_value=agreed))
    paid = min(gross_of(charged, bps), reserved)
    assert split_payment(paid, bps).agent_micro == charged
