"""The database of a simulated cluster: committed rows, and the session that may change them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from core.shards.lease_messages import HeldShard
from ledger.commands import Outcome
from ledger.writer.state_cache import Head, KnownMember, StateCache

# As `idle_session_timeout` of the writer's session.
IDLE_US = 3_000_000


class SessionEnded(Exception):
    """The session is closed, or was idle for too long: it holds the lock no more."""


@dataclass(slots=True)
class ClusterRows:
    """Everything that is stored.

    `version`: of the map. `steps`: by workflow, the attempt that is open. `forms`: by workflow, the
    version of the code that its rows need. `known`: outcomes by key.
    """

    shards: list[HeldShard]
    version: int = 0
    head: Head = field(default_factory=lambda: Head(0, 0, 0, bytes(32), 0))
    members: dict[str, KnownMember] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    steps: dict[str, int] = field(default_factory=dict)
    forms: dict[str, int] = field(default_factory=dict)
    known: dict[str, Outcome] = field(default_factory=dict)

    def after(self, cache: StateCache) -> ClusterRows:
        """Return these rows as a batch leaves them that was planned on this cache."""
        return replace(
            self,
            shards=list(cache.shards),
            version=cache.map_version,
            head=replace(cache.head),
            members=dict(cache.members),
            gone=self.gone | cache.gone_members,
        )


class SimulatedDatabase:
    """The rows, and the lock of the session that may change them.

    Args:
        now_us: the server's clock.
    """

    def __init__(self, rows: ClusterRows, now_us: Callable[[], int]) -> None:
        self.rows = rows
        self.epoch = 0
        # How often the lock was taken from a session that was idle for too long.
        self.expired = 0
        self._now_us = now_us
        self._holder = ""
        self._seen_us = 0

    def __repr__(self) -> str:
        return f"<SimulatedDatabase epoch={self.epoch} version={self.rows.version}>"

    def lock(self, session: str) -> bool:
        """Give the lock to a session if no other one has it; return whether it has it."""
        if self._holder not in ("", session):
            if self._now_us() - self._seen_us < IDLE_US:
                return False
            self.expired += 1
        self._holder, self._seen_us = session, self._now_us()
        return True

    def release(self, session: str) -> None:
        """End a session."""
        if self._holder == session:
            self._holder = ""

    def check_lock(self, session: str) -> None:
        """Execute a statement of the session with the lock. Raises SessionEnded."""
        if self._holder != session or self._now_us() - self._seen_us >= IDLE_US:
            raise SessionEnded
        self._seen_us = self._now_us()

    def take_head(self, session: str) -> tuple[int, ClusterRows]:
        """Return the new epoch and the rows. Raises SessionEnded."""
        self.check_lock(session)
        self.epoch += 1
        return self.epoch, self.rows

    def commit(self, session: str, rows: ClusterRows) -> None:
        """Store what a batch has made of the rows. Raises SessionEnded, and stores nothing then."""
        self.check_lock(session)
        self.rows = rows
