"""The time in which an agent promises its result.

The bid's `etaMs`, else that of the capability in its card, else ten seconds. An attempt that its
payer cuts before is no fault of the agent. Reference: money.md (Promised time).
"""

from __future__ import annotations

from typing import Final

PROMISED_MS: Final = 10_000
