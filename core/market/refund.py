"""The sources of a refund after a dispute.

The remaining payment is split as a payment of that size: the protocol returns its share of the fee
and never keeps more than its rate of the remaining payment. The agent's part comes from its wallet,
then its locked, then its free stake; a shortfall is reported, not covered.
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
    """The current balance of each source, micro-credits, 0 or more."""

    wallet_micro: int
    fee_micro: int
    stake_locked_micro: int
    stake_free_micro: int


@dataclass(frozen=True, slots=True)
class RefundSplit:
    """The amount from each source, micro-credits; `short_micro`: the shortfall."""

    wallet_micro: int
    fee_micro: int
    stake_locked_micro: int
    stake_free_micro: int
    short_micro: int

    @property
    def refunded_micro(self) -> int:
        """The payer's refund."""
        return self.wallet_micro + self.fee_micro + self.stake_locked_micro + self.stake_free_micro

    @property
    def agent_micro(self) -> int:
        """The agent's part, from all of its accounts."""
        return self.wallet_micro + self.stake_locked_micro + self.stake_free_micro


def split_refund(
    refund_micro: int, *, paid: PaymentSplit, refunded: PaymentSplit, sources: RefundSources
) -> RefundSplit:
    """Split a refund of one payment over its sources.

    1. A refund is at most the remaining payment. 2. The fee's part reduces the fee to its share of
    the payment that remains after it, rounded down. 3. The agent pays the rest: wallet, locked
    stake, free stake. 4. A missing balance is a shortfall; neither side covers the other's.

    Args:
        refund_micro: the gross amount, micro-credits, more than 0.
        paid: the payment's two parts, as settled.
        refunded: the parts refunded before.
        sources: the balances of the sources.

    Raises:
        ServiceError: the refund is 0, negative, or above the remaining payment (INVALID_REQUEST).
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
    # After an earlier shortfall, one side may have refunded less or more than its part.
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
    """Divide a workflow's refund over its payments, in proportion to their remaining amounts.

    Each share is rounded down; the remainder goes one by one, from the first on, to rounded shares.

    Args:
        refund_micro: micro-credits, 0 up to the sum of `left_micro`.
        left_micro: the remaining amount of each payment, micro-credits, in order of settlement.
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
