"""The ledger's head: who the one writer is, and when a standby may take its place.

Theory of operation. One row names the writer's epoch and address. Each commit changes that row, and
an idle writer changes it once a second (its beat), so a standby that reads the same row for
`HEAD_SILENCE_MS` knows that the writer has proven nothing since: it acknowledges no renewal any
more (`PROOF_MS`). Only what the standby has read itself counts, and a long time between two of its
reads counts for little, so neither an unreachable Postgres nor its own suspension is the writer's
silence. Pure: the caller measures the time. shards.md (Ledger). Decision 0211.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core.shards.leases import HEAD_SILENCE_MS, PROOF_MS

HEAD_READ_MS: Final = 500
# The longest time between two reads that counts as the writer's silence.
GAP_MS_MAX: Final = 1_000
assert HEAD_SILENCE_MS > PROOF_MS, "a writer that is replaced for its silence acknowledges nothing"


@dataclass(frozen=True, slots=True)
class LedgerAddress:
    """Where the writer is reached.

    `actor`: its name. `start`: differs among the processes that the actor has had.
    """

    actor: str
    start: str

    def __str__(self) -> str:
        return f"{self.actor} {self.start}"

    @classmethod
    def parse(cls, text: str) -> LedgerAddress | None:
        """Return the address that `str` has written; None for "" and for what is none."""
        parts = text.split(" ")
        if len(parts) != 2 or not all(parts):
            return None
        return cls(*parts)


@dataclass(frozen=True, slots=True)
class LedgerHead:
    """The row as it was read. `audit_id`: of the newest audit entry. `beat`: counts idle beats."""

    epoch: int
    audit_id: int
    beat: int
    address: str


@dataclass(frozen=True, slots=True)
class Succession:
    """How a process becomes the writer.

    `address`: what the head says of it afterwards. `head`: as it was read; the epoch is taken only
    while it stands so, and another address is fenced off. None: whatever the head is.
    `is_silent`: the head must not have changed since at all: it is taken for its silence.
    """

    address: str = ""
    head: LedgerHead | None = None
    is_silent: bool = False


ANY_HEAD: Final = Succession()


class HeadSilence:
    """How long the head has stood still, by the reads of one standby."""

    def __init__(self) -> None:
        self._head: LedgerHead | None = None
        self._read_ms = 0
        self._silence_ms = 0

    def __repr__(self) -> str:
        return f"<HeadSilence ms={self._silence_ms} head={self._head}>"

    def note(self, head: LedgerHead, *, asked_ms: int, read_ms: int) -> bool:
        """Note what was read; return whether the head may be taken for its silence.

        Args:
            asked_ms: when it was asked for, by a monotonic clock that runs while the machine is
                suspended.
            read_ms: when the answer came, by the same clock.
        """
        if head != self._head:
            self._head, self._silence_ms = head, 0
        else:
            # From the answer before to this question: it is certain that it stood still so long.
            self._silence_ms += min(max(asked_ms - self._read_ms, 0), GAP_MS_MAX)
        self._read_ms = read_ms
        return self._silence_ms >= HEAD_SILENCE_MS
