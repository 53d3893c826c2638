"""Sends cancel notices to agents: one attempt per cancelled order, best effort.

At most `SENT_MAX` notices of a payer are sent at a time, so an agent that never replies delays only
the notices of its own payers. The number of waiting notices is bounded. Reference: features.md
(Cancellation); decision dispatch.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from actors.dispatch.envelope import cancel_notice
from actors.dispatch.ticket import DispatchLimits
from actors.ports import DispatchOrder
from core.market.sharing.fair_share import Held
from federation.http_client import HttpClient, HttpRequest

# Maximum number of notices of one payer that are sent at a time.
SENT_MAX: Final = 8
# Maximum number of unfinished notices of one payer, and of all payers. They limit the memory used.
WAITING_MAX: Final = 2_000
WAITING_OF_ALL_MAX: Final = 10_000
# Maximum size of the reply to a notice. The reply is ignored.
REPLY_BYTES_MAX: Final = 64 * 1024


class CancelNotices:
    """The cancel notices of one dispatcher.

    Args:
        service: the service name, which is part of the header names.
        client: sends the notices.
        limits: contains the timeout of a notice.
    """

    def __init__(self, service: str, client: HttpClient, limits: DispatchLimits) -> None:
        self._service = service
        self._timeout_s = limits.cancel_notice_timeout_ms / 1000
        self._client = client
        self._open: set[asyncio.Task[None]] = set()
        self._open_of = Held()
        self._places: dict[str, asyncio.Semaphore] = {}  # by payer

    def add(self, order: DispatchOrder, reason: str) -> None:
        """Send a notice to the order's agent; drop it if too many notices are unfinished."""
        payer = order.payer_did
        if self._open_of.of(payer) >= WAITING_MAX or len(self._open) >= WAITING_OF_ALL_MAX:
            return
        self._open_of.add(payer)
        places = self._places.setdefault(payer, asyncio.Semaphore(SENT_MAX))
        notice = asyncio.create_task(self._send(order.without_inputs(), reason, places))
        self._open.add(notice)
        notice.add_done_callback(lambda _: self._forget(notice, payer))

    def close(self) -> None:
        """Cancel all unfinished notices."""
        for notice in self._open:
            notice.cancel()

    def _forget(self, notice: asyncio.Task[None], payer: str) -> None:
        self._open.remove(notice)
        self._open_of.remove(payer)
        if not self._open_of.of(payer):
            del self._places[payer]

    async def _send(self, order: DispatchOrder, reason: str, places: asyncio.Semaphore) -> None:
        async with places:
            body, headers = cancel_notice(order, reason, self._service)
            request = HttpRequest(
                "POST",
                order.cancel_url,
                headers,
                body,
                connect_timeout_s=self._timeout_s,
                timeout_s=self._timeout_s,
                reply_bytes_max=REPLY_BYTES_MAX,
                payer=order.payer_did,
            )
            # A failure is ignored: an agent without a notice gets 409 when it submits its result.
            with contextlib.suppress(ValueError):
                await self._client.request(request)
