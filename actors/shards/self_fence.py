"""Whether a process may send anything new to agents, by what the ledger has acknowledged.

Its last acknowledged renewal must have been *sent* at most 2.5 s ago, on a clock that runs while
the process is suspended. So one that was frozen or cut off sends nothing for a shard that another
member has taken. Decision workflow-owners-and-shards.
"""

from __future__ import annotations

from collections.abc import Callable

from core.shards.leases import SELF_FENCE_MS


class SelfFence:
    """The fence of one process; it is fenced until something is acknowledged.

    Args:
        boot_ms: a monotonic clock that runs while the machine or the process is suspended.
    """

    def __init__(self, boot_ms: Callable[[], int]) -> None:
        self._boot_ms = boot_ms
        self._acknowledged_ms: int | None = None
        self._has_refused = False

    def may_send(self) -> bool:
        """Say whether anything new may be sent now; what may not waits for `has_ended`."""
        is_open = self._is_open()
        self._has_refused |= not is_open
        return is_open

    def acknowledge(self, sent_ms: int) -> None:
        """Note an acknowledged renewal; answers may come in another order than the questions.

        Args:
            sent_ms: when it was sent, by `boot_ms`.
        """
        known_ms = self._acknowledged_ms
        self._acknowledged_ms = sent_ms if known_ms is None else max(sent_ms, known_ms)

    def has_ended(self) -> bool:
        """Say once whether what could not be sent may be sent now."""
        has_ended = self._has_refused and self._is_open()
        self._has_refused &= not has_ended
        return has_ended

    def _is_open(self) -> bool:
        sent_ms = self._acknowledged_ms
        return sent_ms is not None and self._boot_ms() - sent_ms <= SELF_FENCE_MS
