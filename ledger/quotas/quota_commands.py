"""What a payer may publish.

Plain values, as `ledger/commands.py` says. Reference: money.md (Quotas).
"""

from __future__ import annotations

from collections.abc import Mapping

from ledger.authority import AuthorizedCommand


class SetQuota(AuthorizedCommand, frozen=True, kw_only=True):
    """Limit what a payer may publish from now on.

    `changes`: new values by field of `QuotaLimits`, None lifts a limit; a field that is absent
    keeps its value. Result: {"updatedMs": int, "limits": all fields of `QuotaLimits`}.
    """

    did: str
    changes: Mapping[str, int | None]
