"""Tells agents that their orders were cancelled: once each, best effort, payers in turn.

Agents that never answer hold their payers' places alone: notices that wait and notices on their way
are shared out over payers. Spec: Events 3; decision dispatch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from actors.dispatch.envelope import cancel_notice
from actors.dispatch.ticket import DispatchLimits
from actors.ports import DispatchOrder
from core.market.sharing.fair_queue import FairQueue
from core.market.sharing.fair_share import Held, has_room
from federation.http_client import HttpClient, HttpRequest
from federation.http_connection import Exchange, Outcome

# Notices that wait: one payer alone has 8/9 of them, enough for two workflows of the usual limit.
WAITING_ROOM: Final = 2_250
# Notices on their way.
SENT_ROOM: Final = 64
# Of the reply to a notice, which is not looked at.
REPLY_BYTES_MAX: Final = 64 * 1024


class CancelNotices:
    """The notices of one dispatcher.

    Args:
        service: the name in the path of a notice.
        client: sends them.
        weight_of: a payer's weight.
        limits: the timeout of the one try of a notice.
    """

    def __init__(
        self,
        service: str,
        client: HttpClient,
        weight_of: Callable[[str], int],
        limits: DispatchLimits,
    ) -> None:
        self._service = service
        self._timeout_s = limits.cancel_notice_timeout_ms / 1000
        self._client = client
        self._waiting: FairQueue[int, tuple[DispatchOrder, str]] = FairQueue(weight_of)
        self._sent: dict[int, Exchange] = {}
        self._sent_of = Held()
        self._added = 0
        self._turn: asyncio.Handle | None = None

    def __repr__(self) -> str:
        return f"<CancelNotices waiting={len(self._waiting)} sent={len(self._sent)}>"

    def add(self, order: DispatchOrder, reason: str) -> None:
        """Tell the order's agent in its payer's turn; dropped if its payer has too many waiting."""
        payer = order.payer_did
        if not has_room(self._waiting.waiting_of(payer), len(self._waiting), WAITING_ROOM):
            return
        self._added += 1
        self._waiting.put(payer, self._added, (order.without_inputs(), reason))
        self._go_on()

    def close(self) -> None:
        """Drop all notices."""
        if self._turn is not None:
            self._turn.cancel()
        for exchange in self._sent.values():
            exchange.cancel()

    def _go_on(self) -> None:
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._send_waiting)

    def _send_waiting(self) -> None:
        self._turn = None
        while (taken := self._waiting.take(self._may_send)) is not None:
            order, reason = taken
            # Best effort by contract: the 409 to its late result tells the agent otherwise.
            with contextlib.suppress(ValueError):
                self._send(order, reason)

    def _may_send(self, payer: str, _: tuple[DispatchOrder, str]) -> bool:
        return has_room(self._sent_of.of(payer), len(self._sent), SENT_ROOM)

    def _send(self, order: DispatchOrder, reason: str) -> None:
        body, headers = cancel_notice(order, reason, self._service)
        payer = order.payer_did
        request = HttpRequest(
            "POST",
            order.cancel_url,
            headers,
            body,
            connect_timeout_s=self._timeout_s,
            timeout_s=self._timeout_s,
            reply_bytes_max=REPLY_BYTES_MAX,
            payer=payer,
        )

        def ended(_: Outcome) -> None:
            del self._sent[id(order)]
            self._sent_of.remove(payer)
            self._go_on()

        self._sent[id(order)] = self._client.send(request, ended)
        self._sent_of.add(payer)
