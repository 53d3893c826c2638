"""The channels from one process to one owner. The owner's address is the name of its actor.

Decisions fairness-and-long-work and ledger-writer.
"""

from __future__ import annotations

from typing import Any, Final

from actors.transport.actor_calls import BatchCall
from actors.transport.channel import Channel
from actors.transport.messages import (
    CALL_BYTES_MAX,
    Late,
    OwnerAnswer,
    OwnerRequest,
    PackedPublish,
)
from actors.transport.wire import REQUESTS, decode_reply
from core.errors import ServiceError
from core.records.bounds import BULK_ITEMS_MAX
from core.settings import Settings

CALLS_PER_BATCH_MAX: Final = 1_000

# For a channel whose waiting requests share one call: the most waiting requests, and the most
# requests per call.
SHARED_MAX: Final = 100_000
# Requests that are larger than this use the bulk channel.
LARGE_BYTES: Final = 16 * 1024


class OwnerChannels:
    """The channels to one owner: single requests, bulk and large requests, late replies, refreshes.

    The owner answers a call when all requests of the call are committed. Therefore requests that
    are slow to store or to read do not share a call with fast requests.

    Args:
        name: the owner's address.
        settings: the deployment's settings.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        self._single = _channel_to(name, settings, "handle")
        self._bulk = _channel_to(name, settings, "handle_bulk")
        self._late: Channel[int, bytes] = _shared_channel(name, settings, "late")
        self._refreshes: Channel[None, None] = _shared_channel(name, settings, "refresh")

    async def request(self, request: OwnerRequest | PackedPublish, payer: str = "") -> OwnerAnswer:
        """Return the owner's answer; raise it if it is a `ServiceError`.

        Args:
            payer: the payer in whose queue the request waits; "" for the service itself.
        """
        if isinstance(request, PackedPublish):
            reply = decode_reply(await self._bulk.request(request.body, payer))
        else:
            body = REQUESTS.encode(request)
            lane = self._bulk if len(body) > LARGE_BYTES else self._single
            reply = decode_reply(await lane.request(body, payer))
            while isinstance(reply, Late):
                reply = decode_reply(await self._late.request(reply.token))
        if isinstance(reply, ServiceError):
            raise reply
        return reply

    async def refresh(self) -> None:
        await self._refreshes.request(None)

    def close(self) -> None:
        self._single.close()
        self._bulk.close()
        self._refreshes.close()
        self._late.close()


def _channel_to(name: str, settings: Settings, method: str) -> Channel[bytes, bytes]:
    call = BatchCall(settings, name, method)
    return Channel(
        f"owner {name}",
        call,
        capacity=settings.replica_requests_max + BULK_ITEMS_MAX,
        batch_size=CALLS_PER_BATCH_MAX,
        weight_of=len,
        batch_weight=CALL_BYTES_MAX,
        on_close=call.close,
    )


def _shared_channel(name: str, settings: Settings, method: str) -> Channel[Any, Any]:
    """Return a channel in which all requests that arrive during a call share the next call."""
    call = BatchCall(settings, name, method)
    return Channel(
        f"owner {name}, {method}",
        call,
        capacity=SHARED_MAX,
        batch_size=SHARED_MAX,
        on_close=call.close,
    )
