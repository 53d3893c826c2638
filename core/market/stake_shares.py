"""The depositors' shares of a stake, and the distribution of its losses.

A stake grows by deposits alone, each of which adds to one depositor's share; all depositors bear a
slash in proportion. The proportions are constant between two deposits or withdrawals, so the shares
are settled only then. Knows no accounts. Reference: money.md (Stakes). Decision
stakes-and-slashing.
"""

from __future__ import annotations

from collections.abc import Mapping


def settle_shares(shares: Mapping[str, int], total_micro: int) -> dict[str, int]:
    """Return each depositor's current share, micro-credits; their sum is the stake.

    Args:
        shares: by depositor, as last settled, micro-credits.
        total_micro: the whole stake now, its locked part included; at most the sum of `shares`.

    Rounded down; the remaining micro-credits go one by one to the largest shares, equal ones in the
    order of their depositors.
    """
    before_micro = sum(shares.values())
    assert 0 <= total_micro <= before_micro, (total_micro, before_micro)
    if total_micro == before_micro:
        return dict(shares)
    settled = {did: micro * total_micro // before_micro for did, micro in shares.items()}
    rest_micro = total_micro - sum(settled.values())
    for did in sorted(shares, key=lambda did: (-shares[did], did))[:rest_micro]:
        settled[did] += 1
    return settled
