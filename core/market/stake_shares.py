"""Whose credits a stake is: each depositor's share of it, and what of a loss each one bears.

A stake grows by deposits alone, each of which adds to one depositor's share; what it loses to
payers, all depositors lose in proportion. So the shares are settled only when one of them changes:
between two changes the proportions are the same. Knows no accounts. Spec: Stake. Decision 0096.
"""

from __future__ import annotations

from collections.abc import Mapping


def settle_shares(shares: Mapping[str, int], total_micro: int) -> dict[str, int]:
    """Return what each depositor's share is worth now, micro-credits; their sum is the stake.

    Args:
        shares: by depositor, as they were when they were settled last, micro-credits.
        total_micro: the whole stake now, its locked part included; at most the sum of `shares`.

    Rounded down; the micro-credits that are left go one by one to the largest shares, equal ones in
    the order of their depositors.
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
