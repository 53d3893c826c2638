"""The split of a node's payment between its agent and the protocol.

Integers only; the parts always sum to the whole. Reference: money.md (Settlement, Fees, Work of
peers).
"""

from __future__ import annotations

from typing import Final, NamedTuple

FEE_BPS_MAX: Final = 10_000


class PaymentSplit(NamedTuple):
    """The two parts of a payment, micro-credits; a part of zero makes no ledger entry.

    A tuple, because every payment builds one and a frozen dataclass is slower to build.
    """

    agent_micro: int
    fee_micro: int


def split_payment(gross_micro: int, fee_bps: int) -> PaymentSplit:
    """Split a gross payment: the fee is rounded down, the rest is the agent's.

    The protocol never takes more than its rate, and no micro-credit is lost or made (money.md,
    Fees).

    Args:
        gross_micro: micro-credits, ≥ 0.
        fee_bps: basis points, 0..10 000; 500 means 5 percent.
    """
    assert gross_micro >= 0, gross_micro
    assert 0 <= fee_bps <= FEE_BPS_MAX, fee_bps
    fee_micro = gross_micro * fee_bps // FEE_BPS_MAX
    return PaymentSplit(agent_micro=gross_micro - fee_micro, fee_micro=fee_micro)


def gross_of(net_micro: int, fee_bps: int) -> int:
    """Return the payment of which the agent's part is exactly this.

    Args:
        net_micro: micro-credits, ≥ 0.
        fee_bps: basis points, below 10 000.
    """
    gross_micro = net_micro * FEE_BPS_MAX // (FEE_BPS_MAX - fee_bps)
    assert split_payment(gross_micro, fee_bps).agent_micro == net_micro, (net_micro, fee_bps)
    return gross_micro
