"""Decides whether a process may send anything new to agents, by its last acknowledged renewal.

A renewal that the ledger has acknowledged must have been *sent* in the last 2.5 s. The clock also
runs while the process is suspended. So a process that was frozen, or cut off from the ledger, sends
nothing for a shard that another member has taken. Decision workflow-owners-and-shards.
"""

from __future__ import annotations

from collections.abc import Callable

from core.shards.leases import SELF_FENCE_MS


class SelfFence:
    """The fence of one process. The process is fenced until its first renewal is acknowledged.

    Args:
        boot_ms: a monotonic clock that runs while the machine or the process is suspended.
    """

    def __init__(self, boot_ms: Callable[[], int]) -> None:
        self._boot_ms = boot_ms
        self._acknowledged_ms: int | None = None
        self._has_refused = False

    def may_send(self) -> bool:
        """Say whether anything new may be sent now. If not, the sender waits until `has_ended`."""
        is_open = self._is_open()
        self._has_refused |= not is_open
        return is_open

    def acknowledge(self, sent_ms: int) -> None:
        """Note an acknowledged renewal; acknowledgements may arrive in any order.

        Args:
            sent_ms: when the renewal was sent, by `boot_ms`.
        """
        known_ms = self._acknowledged_ms
        self._acknowledged_ms = sent_ms if known_ms is None else max(sent_ms, known_ms)

    def has_ended(self) -> bool:
        """Say whether the fence has ended since `may_send` returned False; True only once."""
        has_ended = self._has_refused and self._is_open()
        self._has_refused &= not has_ended
        return has_ended

    def _is_open(self) -> bool:
        sent_ms = self._acknowledged_ms
        return sent_ms is not None and self._boot_ms() - sent_ms <= SELF_FENCE_MS
