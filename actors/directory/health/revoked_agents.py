"""An owner's cache of revoked agents.

The ledger has the final decision: it refuses all attempts and results of a revoked agent.
Reference: features.md (Revocation); decision permissions-and-keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class Revocations:
    """The revoked agents, each with the end of its revocation.

    Args:
        on_changed: receives the DID of each agent whose revocation began, changed or was lifted.
    """

    def __init__(self, on_changed: Callable[[str], None]) -> None:
        self._until_ms: dict[str, float] = {}
        self._on_changed = on_changed

    def __contains__(self, did: object) -> bool:
        """Say whether an agent has a revocation, even an expired one."""
        return did in self._until_ms

    def __bool__(self) -> bool:
        return bool(self._until_ms)

    def apply_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Store revocations from rows (`did, expires_ms, ended_ms`)."""
        for row in rows:
            if row["ended_ms"] is None:
                until_ms = row["expires_ms"]
                self._until_ms[row["did"]] = math.inf if until_ms is None else until_ms
            else:
                self._until_ms.pop(row["did"], None)
            self._on_changed(row["did"])

    def is_revoked(self, did: str, at_ms: int) -> bool:
        """Say whether an agent is revoked at a time, Unix milliseconds."""
        return did in self._until_ms and at_ms < self._until_ms[did]

    def next_change_ms(self, did: str, at_ms: int) -> float:
        """Return when an agent's revocation expires; infinity if it does not, or there is none."""
        until_ms = self._until_ms.get(did, math.inf)
        return until_ms if until_ms > at_ms else math.inf
