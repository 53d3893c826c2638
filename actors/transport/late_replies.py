"""Replies of an owner that come after those of the call that asked for them.

A call to an owner carries requests of many payers and one call is under way at a time. One request
that takes long, because its payer has a thousand steps waiting for the ledger, would hold up every
other payer's. So a call is answered after `LATE_AFTER_S` with what is settled by then, and with a
token in the place of each reply that is not; the gateway asks for those apart. Decision
ledger-writer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Final

from actors.transport.messages import Late, NotYet, OwnerReply
from actors.transport.wire import encode_reply
from core.errors import ErrorCode

LATE_AFTER_S: Final = 0.1
# A poll is answered after that, so that tokens that have come meanwhile join the next one. A poll
# that ended with the first reply would carry all other tokens for each reply.
POLL_S: Final = 0.1
# Longer than a gateway waits for any reply.
KEPT_S: Final = 20.0


class LateReplies:
    """What an owner has not answered in time, by token."""

    def __init__(self) -> None:
        # Other numbers than those of this owner's predecessor, whose tokens may still be asked for.
        self._token = int.from_bytes(os.urandom(5)) << 20
        self._kept: dict[int, asyncio.Future[OwnerReply]] = {}

    async def settled(self, replies: Sequence[asyncio.Future[OwnerReply]]) -> list[OwnerReply]:
        """Return the replies, with a `Late` in the place of each that takes too long."""
        await asyncio.wait(replies, timeout=LATE_AFTER_S)
        return [reply.result() if reply.done() else self._keep(reply) for reply in replies]

    def _keep(self, reply: asyncio.Future[OwnerReply]) -> Late:
        self._token += 1
        self._kept[self._token] = reply
        asyncio.get_running_loop().call_later(KEPT_S, self._kept.pop, self._token, None)
        return Late(token=self._token)

    async def take(self, tokens: Sequence[int]) -> list[bytes]:
        """Return these replies as they travel, with the `Late` again for each that takes longer.

        A token that is not known was another process's: what it stands for is to be asked again.
        """
        kept = [self._kept[token] for token in tokens if token in self._kept]
        if len(kept) == len(tokens):
            await asyncio.wait(kept, timeout=POLL_S)
        return [encode_reply(self._take(token)) for token in tokens]

    def _take(self, token: int) -> OwnerReply:
        reply = self._kept.get(token)
        if reply is None:
            message = "the reply was lost with its owner's process"
            return NotYet(ErrorCode.OVERLOADED, message, retry_after_s=1)
        if not reply.done():
            return Late(token=token)
        del self._kept[token]
        return reply.result()
