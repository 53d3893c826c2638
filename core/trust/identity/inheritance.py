"""The dead man's switch of an agent: how much of its time has run, and what that is called.

Pure. The time is that in which the service was ready (`ledger/identity/readiness.py`), since the
agent was last heard. Reference: features.md (Inheritance). Decision agent-identity.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

DAY_MS: Final = 86_400_000
# Of the switch's time: from then on it warns.
WARNING_PERCENT: Final = 80


class SwitchStatus(StrEnum):
    """What a reader is told: `inactive`, the switch has far to go; `warning`; `triggered`."""

    INACTIVE = "inactive"
    WARNING = "warning"
    TRIGGERED = "triggered"


def switch_status(silent_ms: int, days: int, *, is_triggered: bool) -> SwitchStatus:
    """Return the status of a switch.

    Args:
        silent_ms: how long nothing was heard.
        days: after how many of silence it runs.
        is_triggered: whether it has run.
    """
    if is_triggered:
        return SwitchStatus.TRIGGERED
    if silent_ms * 100 >= days * DAY_MS * WARNING_PERCENT:
        return SwitchStatus.WARNING
    return SwitchStatus.INACTIVE
