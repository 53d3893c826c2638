"""Splits a refund after a dispute over the accounts that pay it.

The amount that remains paid after the refund is split like a payment of this size. The protocol
keeps the fee for this amount and returns the rest of its fee. The agent's part of the refund comes
from its wallet, then from its locked stake, then from its free stake. If the balances do not
suffice, the missing amount is only reported; no other account covers it.
Reference: money.md (Disputes and refunds). Decision refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import ErrorCode, Problem, ServiceError
from core.market.settlement import PaymentSplit
from core.money import credits_text


@dataclass(frozen=True, slots=True)
class RefundSources:
    """The current balances of the accounts that pay a refund, micro-credits, each 0 or more."""

    wallet_micro: int
    fee_micro: int
    stake_locked_micro: int
    stake_free_micro: int


@dataclass(frozen=True, slots=True)
class RefundSplit:
    """The amount that each account pays, micro-credits; `short_micro`: the missing amount."""

    wallet_micro: int
    fee_micro: int
    stake_locked_micro: int
    stake_free_micro: int
    short_micro: int

    @property
    def refunded_micro(self) -> int:
        """The amount that the payer gets back."""
        return self.wallet_micro + self.fee_micro + self.stake_locked_micro + self.stake_free_micro

    @property
    def agent_micro(self) -> int:
        """The sum of the amounts from the agent's accounts."""
        return self.wallet_micro + self.stake_locked_micro + self.stake_free_micro


def split_refund(
    refund_micro: int, *, paid: PaymentSplit, refunded: PaymentSplit, sources: RefundSources
) -> RefundSplit:
    """Split a refund of one payment over the accounts that pay it.

    1. The refund is at most the amount that is still paid.
    2. The protocol keeps its fee on the amount that remains paid after the refund, rounded down. It
       returns the rest of the fee.
    3. The agent pays the rest of the refund: from its wallet, its locked stake, its free stake.
    4. If a balance does not suffice, the missing amount is a shortfall. Neither the agent nor the
       protocol covers the shortfall of the other.

    Args:
        refund_micro: the gross amount, micro-credits, more than 0.
        paid: the two parts of the payment when it was settled.
        refunded: the parts of the payment that earlier refunds returned.
        sources: the balances of the accounts.

    Raises:
        ServiceError: the refund is 0, negative, or above the amount that is still paid
            (INVALID_REQUEST).

    Reference: money.md (Disputes and refunds).
    """
    paid_micro = paid.agent_micro + paid.fee_micro
    left_micro = paid_micro - refunded.agent_micro - refunded.fee_micro
    if not 0 < refund_micro <= left_micro:
        got, most = credits_text(refund_micro), credits_text(left_micro)
        problem = Problem(
            "creditsRefunded", got, f"more than 0, and at most {most}, the amount still paid"
        )
        detail = f"creditsRefunded: got {got}, expected more than 0 and at most {most}"
        raise ServiceError(ErrorCode.INVALID_REQUEST, detail, (problem,))
    fee_left_micro = paid.fee_micro - refunded.fee_micro
    fee_kept_micro = paid.fee_micro * (left_micro - refund_micro) // paid_micro
    # After an earlier shortfall, the agent or the protocol may have returned less than its part.
    fee_micro = min(max(0, fee_left_micro - fee_kept_micro), refund_micro)
    wanted_micro = refund_micro - fee_micro
    assert wanted_micro <= left_micro - fee_left_micro, (refund_micro, paid, refunded)
    from_fee = min(fee_micro, sources.fee_micro)
    from_wallet = min(wanted_micro, sources.wallet_micro)
    from_locked = min(wanted_micro - from_wallet, sources.stake_locked_micro)
    from_free = min(wanted_micro - from_wallet - from_locked, sources.stake_free_micro)
    short = refund_micro - from_fee - from_wallet - from_locked - from_free
    return RefundSplit(from_wallet, from_fee, from_locked, from_free, short)


def share_refund(refund_micro: int, left_micro: Sequence[int]) -> list[int]:
    """Divide a workflow's refund over its payments, in proportion to the amounts still paid.

    Each share is rounded down. The remaining micro-credits are added one by one to the shares that
    were rounded, beginning with the first.

    Args:
        refund_micro: the refund, micro-credits, 0 to the sum of `left_micro`.
        left_micro: the amount of each payment that is still paid, micro-credits, in the order of
            settlement.
    """
    whole = sum(left_micro)
    assert 0 <= refund_micro <= whole, (refund_micro, whole)
    if whole == 0:
        return [0] * len(left_micro)
    shares = [refund_micro * left // whole for left in left_micro]
    rest = refund_micro - sum(shares)
    for position, left in enumerate(left_micro):
        if rest and refund_micro * left % whole:
            shares[position] += 1
            rest -= 1
    assert sum(shares) == refund_micro, (shares, refund_micro)
    return shares
