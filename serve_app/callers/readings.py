"""What operators read by a single right, noted on the chain with their reason.

An entry per read would let a reader fill the chain, so there is one in an hour for each credential,
right, operation and reason; another reason costs a call of the class write. The note goes on beside
the reply: a ledger that is away keeps no operator from looking, and a note that failed is given
with the next read. Decision audit-chain.
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
from ledger.features.trust import NoteReading

_LOG = logging.getLogger("callboard.api")
HOUR_MS: Final = 3_600_000
REMEMBERED_MAX: Final = 1_000


class Readings:
    """The notes of one replica.

    Args:
        commit: gives a command to the ledger.
    """

    def __init__(self, commit: Callable[[NoteReading], Awaitable[object]]) -> None:
        self._commit = commit
        # Keys of the notes that were given, the oldest first.
        self._noted: dict[str, None] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    def new(
        self, principal: Principal, authority: Authority, operation: str, now_ms: int
    ) -> NoteReading | None:
        """Return the note of a read, None where this replica has given it in this hour.

        Args:
            operation: its method and path, as declared.
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
        return NoteReading(
            key=key, actor_did=principal.did, operation=operation, authority=authority
        )

    def give(self, note: NoteReading) -> None:
        """Give a note to the ledger, beside the caller's reply."""
        self._noted[note.key] = None
        if len(self._noted) > REMEMBERED_MAX:
            del self._noted[next(iter(self._noted))]
        task = asyncio.ensure_future(self._give(note))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _give(self, note: NoteReading) -> None:
        try:
            await self._commit(note)
        except ServiceError as error:
            self._noted.pop(note.key, None)
            _LOG.warning("reading not noted operation=%r error=%r", note.operation, error)
