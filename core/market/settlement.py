"""Splits a node's payment between its agent and the protocol.

All amounts are integers, and the two parts always add up to the payment.
Reference: money.md (Settlement, Fees, Work of peers).
"""

from __future__ import annotations

from typing import Final, NamedTuple

FEE_BPS_MAX: Final = 10_000


class PaymentSplit(NamedTuple):
    """The two parts of a payment, micro-credits; a part of 0 makes no ledger entry.

    Every payment builds a `PaymentSplit`, and a tuple is built faster than a frozen dataclass.
    """

    agent_micro: int
    fee_micro: int


def split_payment(gross_micro: int, fee_bps: int) -> PaymentSplit:
    """Split a gross payment: the fee is rounded down, and the agent gets the rest.

    So the protocol never takes more than its rate, and no micro-credit is lost or created.

    Args:
        gross_micro: the payment, micro-credits, 0 or more.
        fee_bps: the protocol's fee, basis points, 0 to 10,000; 500 means 5 percent.

    Reference: money.md (Fees).
    """
    assert gross_micro >= 0, gross_micro
    assert 0 <= fee_bps <= FEE_BPS_MAX, fee_bps
    fee_micro = gross_micro * fee_bps // FEE_BPS_MAX
    return PaymentSplit(agent_micro=gross_micro - fee_micro, fee_micro=fee_micro)


def gross_of(net_micro: int, fee_bps: int) -> int:
    """Return the gross payment from which the agent gets exactly a given amount, micro-credits.

    Args:
        net_micro: the agent's part, micro-credits, 0 or more.
        fee_bps: the protocol's fee, basis points, below 10,000.
    """
    gross_micro = net_micro * FEE_BPS_MAX // (FEE_BPS_MAX - fee_bps)
    assert split_payment(gross_micro, fee_bps).agent_micro == net_micro, (net_micro, fee_bps)
    return gross_micro
