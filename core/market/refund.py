"""Where a refund comes from when a payment turns out to have been undeserved.

What remains paid is split as a payment of that size: the protocol returns its share of the fee and
never keeps more than its rate of what the payer really paid. The agent's part comes from its
wallet, then its locked, then its free stake; what is still missing is said and not conjured up.
Spec: Settlement rules 10; contract.md section 6 (Disputes); money.md case 15. Decision 0064.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import ErrorCode, Problem, ServiceError
from core.market.settlement import PaymentSplit
from core.money import credits_text


@dataclass(frozen=True, slots=True)
class RefundSources:
    """What each account can give now, micro-credits, 0 or more."""

    wallet_micro: int
    fee_micro: int
    stake_locked_micro: int
    stake_free_micro: int


@dataclass(frozen=True, slots=True)
class RefundSplit:
    """What each account gives, micro-credits; `short_micro` is what nobody can."""

    wallet_micro: int
    fee_micro: int
    stake_locked_micro: int
    stake_free_micro: int
    short_micro: int

    @property
    def refunded_micro(self) -> int:
        """What the payer gets."""
        return self.wallet_micro + self.fee_micro + self.stake_locked_micro + self.stake_free_micro

    @property
    def agent_micro(self) -> int:
        """What the agent gives, from whichever of its accounts."""
        return self.wallet_micro + self.stake_locked_micro + self.stake_free_micro


def split_refund(
    refund_micro: int, *, paid: PaymentSplit, refunded: PaymentSplit, sources: RefundSources
) -> RefundSplit:
    """Split a refund of one payment over the accounts that give it.

    1. Not more than is left of the payment. 2. The fee's part brings the fee down to its share of
    what remains paid, rounded down. 3. The rest is the agent's: wallet, locked stake, free stake.
    4. What an account lacks is short; the fee's lack is not the agent's, nor the other way round.

    Args:
        refund_micro: the gross amount, micro-credits, more than 0.
        paid: the payment's two parts, as settled.
        refunded: what agent and fee gave back of it before.
        sources: what the accounts hold.

    Raises:
        ServiceError: the refund is 0, negative, or more than is left (INVALID_REQUEST).
    """
    paid_micro = paid.agent_micro + paid.fee_micro
    left_micro = paid_micro - refunded.agent_micro - refunded.fee_micro
    if not 0 < refund_micro <= left_micro:
        got, most = credits_text(refund_micro), credits_text(left_micro)
        problem = Problem("creditsRefunded", got, f"more than 0, at most the {most} still paid")
        detail = f"creditsRefunded: got {got}, expected more than 0 and at most {most}"
        raise ServiceError(ErrorCode.INVALID_REQUEST, detail, (problem,))
    fee_left_micro = paid.fee_micro - refunded.fee_micro
    fee_kept_micro = paid.fee_micro * (left_micro - refund_micro) // paid_micro
    # Where an earlier refund fell short, one side has given too little or too much of its part.
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
    """Divide a refund of a whole workflow over its payments, in proportion to what is left of each.

    Each share is rounded down; what that leaves over goes out one by one, from the first on, to
    those that were rounded.

    Args:
        refund_micro: micro-credits, 0 up to the sum of `left_micro`.
        left_micro: what is left of each payment, micro-credits, in the order of settlement.
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
