"""What open requests may hold of a replica: places, waits, incomplete bodies, bytes.

Every holder is an owner DID (over all its keys) or, without a recognised key, the address of the
connection. A request takes what it needs as it goes on and gives all of it back at its end; what is
not to be had is refused at once, so nothing queues. Decision fairness-and-long-work.
"""

from __future__ import annotations

from core.errors import ErrorCode, ServiceError
from core.settings import MIB, Settings
from serve_app.callers.shares import Shares

RETRY_AFTER_S = 1
# Bytes of bodies, and of replies, that a replica holds.
BYTES_MAX = 512 * MIB
# Streamed replies at a time in a replica.
STREAMS_MAX = 8
# Event streams per replica. A caller may have 1/24 of the free ones: 20 if it is alone.
EVENT_STREAMS_MAX, EVENT_STREAMS_PART = 500, 24


class Admission:
    """The stocks of one replica.

    Args:
        settings: their sizes.
    """

    def __init__(self, settings: Settings) -> None:
        part = settings.share_of_free
        self.requests = Shares(settings.replica_requests_max, part)
        # Requests whose key is looked up: apart, so that open ones of an address do not keep the
        # first request of an owner at the same address from being recognised.
        self.lookups = Shares(settings.replica_requests_max, part)
        self.waits = Shares(settings.waits_max, part)
        self.incomplete_bodies = Shares(settings.bodies_max, part)
        self.body_bytes = Shares(BYTES_MAX, part)
        self.reply_bytes = Shares(BYTES_MAX, part)
        self.streams = Shares(STREAMS_MAX, part)
        self.event_streams = Shares(EVENT_STREAMS_MAX, EVENT_STREAMS_PART)


class Place:
    """What one request holds; it starts with nothing."""

    __slots__ = ("_admission", "_held", "holder")

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._held: list[tuple[Shares, int, str]] = []
        self.holder = ""

    @property
    def admission(self) -> Admission:
        """The stocks that it takes from."""
        return self._admission

    def enter(self, holder: str, shares: Shares | None = None) -> None:
        """Take a place, after giving back all that is held.

        Args:
            holder: a DID, or an address.
            shares: the stock; None for the places of open requests.

        Raises:
            ServiceError: RATE_LIMITED or OVERLOADED.
        """
        self.leave()
        self.holder = holder
        self.take(shares or self._admission.requests, 1, "requests are open")

    def take(self, shares: Shares, amount: int, what: str, holder: str = "") -> None:
        """Take some of a stock until the request ends.

        Args:
            what: for the refusal.
            holder: whose share it is of; default: the request's holder.

        Raises:
            ServiceError: RATE_LIMITED when the holder has its share, OVERLOADED when all is taken.
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
        """Give some of a stock back before the request ends."""
        self._held.remove((shares, amount, self.holder))
        shares.give_back(self.holder, amount)

    def leave(self) -> None:
        """Give everything back."""
        for shares, amount, holder in self._held:
            shares.give_back(holder, amount)
        self._held.clear()
