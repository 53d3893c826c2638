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

from actors.transport.actor_calls import BatchCall
from actors.transport.messages import Late, NotYet, OwnerReply
from actors.transport.wire import Undecodable, decode_reply, encode_reply
from core.errors import ErrorCode

LATE_AFTER_S: Final = 0.1
# A poll is answered after that, so that tokens that have come meanwhile join the next one.
POLL_S: Final = 0.25
# Longer than a gateway waits for any reply.
KEPT_S: Final = 20.0


class LateReplies:
    """What an owner has not answered in time, by token."""

    def __init__(self) -> None:
        # Other numbers than those of this owner's predecessor, whose tokens may still be asked for.
        self._token = int.from_bytes(os.urandom(5)) << 20
        self._kept: dict[int, asyncio.Future[OwnerReply]] = {}

    def __repr__(self) -> str:
        return f"<LateReplies kept={len(self._kept)}>"

    async def settled(self, replies: Sequence[asyncio.Future[OwnerReply]]) -> list[OwnerReply]:
        """Return the replies, with a `Late` in the place of each that takes too long."""
        await asyncio.wait(replies, timeout=LATE_AFTER_S)
        return [reply.result() if reply.done() else self._keep(reply) for reply in replies]

    def _keep(self, reply: asyncio.Future[OwnerReply]) -> Late:
        self._token += 1
        self._kept[self._token] = reply
        asyncio.get_running_loop().call_later(KEPT_S, self._kept.pop, self._token, None)
        return Late(token=self._token)

    async def take(self, tokens: Sequence[int]) -> list[tuple[int, bytes]]:
        """Return which of these replies have come, as they travel; waits for the first.

        A token that is not known was another process's: what it stands for is to be asked again.
        """
        waiting = {token: self._kept[token] for token in tokens if token in self._kept}
        if len(waiting) == len(tokens):
            await asyncio.wait(
                waiting.values(), timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED
            )
        found: list[tuple[int, OwnerReply]] = [
            (token, _lost()) for token in tokens if token not in waiting
        ]
        for token, reply in waiting.items():
            if reply.done():
                self._kept.pop(token, None)
                found.append((token, reply.result()))
        return [(token, encode_reply(reply)) for token, reply in found]


class LatePoll:
    """Asks one owner for its late replies, for all that wait for one.

    Args:
        call: `LateReplies.take` of the owner; an exception leaves the outcomes unknown.
    """

    def __init__(self, call: BatchCall) -> None:
        self._call = call
        self._waiting: dict[int, asyncio.Future[OwnerReply]] = {}
        self._task: asyncio.Task[None] | None = None

    async def reply(self, late: Late) -> OwnerReply:
        """Return a reply when it has come. Raises what `call` raises."""
        future: asyncio.Future[OwnerReply] = asyncio.get_running_loop().create_future()
        self._waiting[late.token] = future
        if self._task is None:
            self._task = asyncio.create_task(self._poll())
        try:
            return await future
        finally:
            self._waiting.pop(late.token, None)

    def close(self) -> None:
        """Ask no more; who still waits hears that the outcome is unknown."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        self._call.close()
        self._fail(ConnectionError("the owner is not asked any more"))

    async def _poll(self) -> None:
        task = asyncio.current_task()
        try:
            while self._waiting:
                try:
                    found = await self._call(list(self._waiting))
                except Exception as error:  # the edge to another process
                    self._fail(error)
                    return
                for token, body in found:
                    future = self._waiting.pop(token, None)  # not to be asked for again
                    if future is not None and not future.done():
                        _settle(future, body)
        except asyncio.CancelledError:
            self._fail(ConnectionError("the owner is not asked any more"))
            raise
        finally:
            if self._task is task:
                self._task = None

    def _fail(self, error: Exception) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)


def _settle(future: asyncio.Future[OwnerReply], body: bytes) -> None:
    try:
        future.set_result(decode_reply(body))
    except Undecodable as error:  # its own answer: the others go on waiting for theirs
        future.set_exception(error)


def _lost() -> NotYet:
    message = "the reply was lost with its owner's process"
    return NotYet(ErrorCode.OVERLOADED, message, retry_after_s=1)
