"""Audits the reads that a single right permitted, with the caller's reason.

One audit entry per read would let a reader fill the audit chain. So there is one entry per hour for
each credential, right, operation and reason. Each new entry counts as a call of the class WRITE.
The entry is committed in the background: if the ledger is unavailable, operators can still read,
and the next read tries to commit the entry again. Decision audit-chain.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from core.errors import ServiceError
from core.ids import composed_key
from core.trust.access import Principal
from ledger.authority import Authority
from ledger.features.trust import NoteAuditedRead

_LOG = logging.getLogger("callboard.api")
HOUR_MS: Final = 3_600_000
REMEMBERED_MAX: Final = 1_000


class AuditedReads:
    """Commits the audit entries of reads for one replica.

    Args:
        commit: sends a command to the ledger.
    """

    def __init__(self, commit: Callable[[NoteAuditedRead], Awaitable[object]]) -> None:
        self._commit = commit
        # Keys of the commands that were sent, oldest first.
        self._noted: dict[str, None] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    def new(
        self, principal: Principal, authority: Authority, operation: str, now_ms: int
    ) -> NoteAuditedRead | None:
        """Return the command that audits a read; None if this replica has sent it in this hour.

        Args:
            principal: the caller.
            authority: the single right that permitted the read, and the caller's reason.
            operation: the method and the path template of the operation.
            now_ms: Unix time, milliseconds.
        """
        key = composed_key(
            "reading",
            principal.key_id,
            principal.did,
            authority.right,
            operation,
            str(now_ms // HOUR_MS),
            hashlib.sha256(authority.reason.encode()).hexdigest(),
        )
        if key in self._noted:
            return None
        return NoteAuditedRead(
            key=key, actor_did=principal.did, operation=operation, authority=authority
        )

    def give(self, note: NoteAuditedRead) -> None:
        """Send a command to the ledger in the background. The caller's reply does not wait."""
        self._noted[note.key] = None
        if len(self._noted) > REMEMBERED_MAX:
            del self._noted[next(iter(self._noted))]
        task = asyncio.ensure_future(self._give(note))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _give(self, note: NoteAuditedRead) -> None:
        try:
            await self._commit(note)
        except ServiceError as error:
            self._noted.pop(note.key, None)
            _LOG.warning("reading not noted operation=%r error=%r", note.operation, error)
