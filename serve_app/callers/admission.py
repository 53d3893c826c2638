"""Admission control: limits how many places and bytes of a replica its open requests use.

There are places for open requests, credential look-ups, waiting requests, incomplete bodies and
streams. Bytes are those of bodies and of replies. Each resource is counted per holder: an owner DID
(with all its keys), or the client's address if the request has no recognised credential. A request
takes resources as it needs them, and releases them at its end. If a resource is not available, the
request is refused at once. It is not queued. Decision fairness-and-long-work.
"""

from __future__ import annotations

from core.errors import ErrorCode, ServiceError
from core.settings import MIB, Settings
from serve_app.callers.shares import Shares

RETRY_AFTER_S = 1
# The most bytes of bodies, and the most bytes of replies, that a replica has in memory.
BYTES_MAX = 512 * MIB
# Concurrent streamed replies (exports) of a replica.
STREAMS_MAX = 8
# The most concurrent event streams of a replica. A caller may have at most 1/24 of the number that
# is still free. That is 20 streams if no other caller has a stream.
EVENT_STREAMS_MAX, EVENT_STREAMS_PART = 500, 24


class Admission:
    """The resources of one replica.

    Args:
        settings: the sizes of the resources.
    """

    def __init__(self, settings: Settings) -> None:
        part = settings.share_of_free
        self.requests = Shares(settings.replica_requests_max, part)
        # Requests whose credential is being looked up are counted separately. Otherwise the open
        # requests of an address could block an owner's first request from the same address.
        self.lookups = Shares(settings.replica_requests_max, part)
        self.waits = Shares(settings.waits_max, part)
        self.incomplete_bodies = Shares(settings.bodies_max, part)
        self.body_bytes = Shares(BYTES_MAX, part)
        self.reply_bytes = Shares(BYTES_MAX, part)
        self.streams = Shares(STREAMS_MAX, part)
        self.event_streams = Shares(EVENT_STREAMS_MAX, EVENT_STREAMS_PART)


class Place:
    """The resources that one request holds."""

    __slots__ = ("_admission", "_held", "holder")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._held: list[tuple[Shares, int, str]] = []
        self.holder = ""

    @property
    def admission(self) -> Admission:
        """The resources of the replica."""
        return self._admission

    def enter(self, holder: str, shares: Shares | None = None) -> None:
        """Release everything that the request holds, then take a place for the request.

        Args:
            holder: the DID or the address under which the request counts from now on.
            shares: the resource to take the place from; None: the open requests.

        Raises:
            ServiceError: RATE_LIMITED or OVERLOADED.
        """
        self.leave()
        self.holder = holder
        self.take(shares or self._admission.requests, 1, "requests are open")

    def take(self, shares: Shares, amount: int, what: str, holder: str = "") -> None:
        """Take an amount of a resource until the request ends.

        Args:
            shares: the resource.
            amount: places or bytes, 1 or more.
            what: the name of the resource, for the refusal.
            holder: the DID or the address to count it under; default: the request's holder.

        Raises:
            ServiceError: RATE_LIMITED if the holder's share is too small; OVERLOADED if less than
                the amount is free.
        """
        holder = holder or self.holder
        if shares.take(holder, amount):
            self._held.append((shares, amount, holder))
            return
        if shares.is_taken(amount):
            code, detail = (
                ErrorCode.OVERLOADED,
                f"too many {what} at this replica: repeat the request later",
            )
        else:
            code, detail = (
                ErrorCode.RATE_LIMITED,
                f"too many {what} for {holder}: repeat the request later",
            )
        raise ServiceError(code, detail, retry_after_s=RETRY_AFTER_S)

    def give_back(self, shares: Shares, amount: int = 1) -> None:
        """Release an amount of a resource before the request ends."""
        self._held.remove((shares, amount, self.holder))
        shares.give_back(self.holder, amount)

    def leave(self) -> None:
        """Release everything that the request holds."""
        for shares, amount, holder in self._held:
            shares.give_back(holder, amount)
        self._held.clear()
