"""Keeps the late replies of an owner: replies that are not ready when their call is answered.

A call to an owner contains requests of many payers, and one call is in flight at a time. A request
may take long, for example because a thousand steps of its payer wait for the ledger. The requests
of other payers must not wait for this request. Therefore the owner answers a call after
`LATE_AFTER_S`, with a token in place of each reply that is not ready. The gateway requests these
replies separately, by token.
Decision ledger-writer.
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
# A poll for late replies is answered when all its replies are ready, or after this time. Tokens
# that arrive during a poll join the next poll. A poll does not end with the first ready reply,
# because the next poll would then send all other tokens again.
POLL_S: Final = 0.1
# The time for which late replies are stored. A gateway waits less than this for any reply.
KEPT_S: Final = 20.0


class LateReplies:
    """The late replies of an owner, by token."""

    def __init__(self) -> None:
        # Starts at a random number, because a gateway may still request tokens of this owner's
        # predecessor.
        self._token = int.from_bytes(os.urandom(5)) << 20
        self._kept: dict[int, asyncio.Future[OwnerReply]] = {}

    async def settled(self, replies: Sequence[asyncio.Future[OwnerReply]]) -> list[OwnerReply]:
        """Return the replies, with a `Late` in place of each reply that is not ready in time."""
        await asyncio.wait(replies, timeout=LATE_AFTER_S)
        return [reply.result() if reply.done() else self._keep(reply) for reply in replies]

    def _keep(self, reply: asyncio.Future[OwnerReply]) -> Late:
        self._token += 1
        self._kept[self._token] = reply
        asyncio.get_running_loop().call_later(KEPT_S, self._kept.pop, self._token, None)
        return Late(token=self._token)

    async def take(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the encoded replies of these tokens, with a `Late` for each that is not ready.

        The reply for an unknown token is a `NotYet`: a previous process issued the token, or the
        token has expired. The gateway then repeats the request.
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
