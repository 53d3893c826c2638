"""How slowly a client may send a body or take a reply: a time, and more of it as bytes move.

Measured by the event loop's monotonic clock. contract.md section 2 (Limits); decision 0100.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.settings import Settings


@dataclass(frozen=True, slots=True)
class Pace:
    """`timeout_s` for any transfer, and one second more for every `rate_min` bytes of it."""

    timeout_s: float
    rate_min: int

    @classmethod
    def of(cls, settings: Settings) -> Pace:
        """Return the deployment's."""
        return cls(settings.transfer_timeout_s, settings.transfer_rate_min)

    def end(self, began: float, moved: int) -> float:
        """Return when a transfer is too slow, by the clock of `began`, in seconds.

        Args:
            moved: bytes so far.
        """
        return began + self.timeout_s + moved / self.rate_min
