"""Where refunds come from. Reference: money.md (Disputes and refunds)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ErrorCode, ServiceError
from core.market.refund import RefundSources, RefundSplit, share_refund, split_refund
from core.market.settlement import PaymentSplit, split_payment

NOTHING = PaymentSplit(0, 0)
RICH = RefundSources(10**15, 10**15, 10**15, 10**15)
SMALL = st.integers(0, 400)
SOURCES = st.builds(RefundSources, SMALL, SMALL, SMALL, SMALL)
GROSS, BPS = st.integers(1, 1_000), st.sampled_from([0, 1, 500, 3_333, 10_000])


def refund(micro: int, paid: PaymentSplit, **fields: object) -> RefundSplit:
    values = {"refunded": NOTHING, "sources": RICH, **fields}
    return split_refund(micro, paid=paid, **values)  # type: ignore[arg-type]


@given(GROSS, BPS, st.lists(st.tuples(st.integers(1, 1_000), SOURCES), max_size=5))
def test_case_15_refunds_of_a_payment_are_capped_and_never_take_what_is_not_there(
    gross: int, bps: int, wishes: list[tuple[int, RefundSources]]
) -> None:
    """Refunds one after the other, each from accounts that may be short."""
    paid, before = split_payment(gross, bps), NOTHING
    for wish, sources in wishes:
        left = gross - before.agent_micro - before.fee_micro
        if wish > left:
            with pytest.raises(ServiceError, match="creditsRefunded"):
                refund(wish, paid, refunded=before, sources=sources)
            continue
        found = refund(wish, paid, refunded=before, sources=sources)
        assert found.refunded_micro + found.short_micro == wish
        assert 0 <= found.wallet_micro <= sources.wallet_micro
        assert 0 <= found.fee_micro <= sources.fee_micro
        assert 0 <= found.stake_locked_micro <= sources.stake_locked_micro
        assert 0 <= found.stake_free_micro <= sources.stake_free_micro
        assert found.short_micro >= 0
        before = PaymentSplit(
            before.agent_micro + found.agent_micro, before.fee_micro + found.fee_micro
        )
        assert before.agent_micro <= paid.agent_micro
        assert before.fee_micro <= paid.fee_micro


@given(GROSS, BPS, st.lists(st.integers(1, 1_000), max_size=5))
def test_case_15_what_remains_paid_never_has_more_than_the_rate_as_fee(
    gross: int, bps: int, wishes: list[int]
) -> None:
    paid, before = split_payment(gross, bps), NOTHING
    for wish in [*wishes, None]:
        left = gross - before.agent_micro - before.fee_micro
        micro = left if wish is None else min(wish, left)
        if micro == 0:
            break
        found = refund(micro, paid, refunded=before)
        assert found.short_micro == 0
        before = PaymentSplit(
            before.agent_micro + found.agent_micro, before.fee_micro + found.fee_micro
        )
        fee_kept = paid.fee_micro - before.fee_micro
        exact = paid.fee_micro * (left - micro)  # times 1 / gross
        assert fee_kept * gross <= exact < (fee_kept + 1) * gross
        assert fee_kept * 10_000 <= (left - micro) * bps
    if before.agent_micro + before.fee_micro == gross:
        assert before == paid


def test_case_15_the_agents_part_comes_from_wallet_then_locked_then_free_stake() -> None:
    paid = PaymentSplit(950, 50)
    cases = [
        (RefundSources(950, 50, 9, 9), RefundSplit(950, 50, 0, 0, 0)),
        (RefundSources(900, 50, 30, 90), RefundSplit(900, 50, 30, 20, 0)),
        (RefundSources(0, 50, 0, 949), RefundSplit(0, 50, 0, 949, 1)),
        (RefundSources(0, 0, 0, 0), RefundSplit(0, 0, 0, 0, 1_000)),
        # The agent does not answer for the protocol's purse.
        (RefundSources(2_000, 10, 0, 0), RefundSplit(950, 10, 0, 0, 40)),
    ]
    for sources, expected in cases:
        assert refund(1_000, paid, sources=sources) == expected


def test_case_15_the_fee_comes_back_in_proportion() -> None:
    paid = PaymentSplit(950_000, 50_000)
    found = refund(500_000, paid)
    assert (found.agent_micro, found.fee_micro) == (475_000, 25_000)


def test_case_15_after_a_refund_that_fell_short_neither_side_gives_more_than_its_part() -> None:
    paid = PaymentSplit(950, 50)
    poor_agent, poor_fee = PaymentSplit(0, 50), PaymentSplit(950, 0)
    assert refund(475, paid, refunded=poor_agent) == RefundSplit(475, 0, 0, 0, 0)
    assert refund(20, paid, refunded=poor_fee) == RefundSplit(0, 20, 0, 0, 0)


@pytest.mark.parametrize("micro", [0, -1, 1_001])
def test_case_15_a_refund_above_what_was_paid_is_refused(micro: int) -> None:
    with pytest.raises(ServiceError) as refused:
        refund(micro, PaymentSplit(950, 50))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    with pytest.raises(ServiceError):
        refund(1, PaymentSplit(950, 50), refunded=PaymentSplit(950, 50))


@given(st.lists(st.integers(0, 50), max_size=6), st.data())
def test_a_workflows_refund_is_shared_exactly_within_each_payment(
    left: list[int], data: st.DataObject
) -> None:
    whole = sum(left)
    micro = data.draw(st.integers(0, whole))
    shares = share_refund(micro, left)
    assert sum(shares) == micro
    for share, most in zip(shares, left, strict=True):
        assert 0 <= share <= most
        assert abs(share * whole - micro * most) < whole or whole == 0


def test_the_remainder_of_a_shared_refund_goes_to_the_first_payments() -> None:
    assert share_refund(5, [3, 3, 3]) == [2, 2, 1]
    assert share_refund(1, [0, 4]) == [0, 1]
