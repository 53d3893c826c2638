"""The transport between processes: sends a batch of requests, receives a batch of replies.

One call is in flight per destination. Requests that arrive during the call form the next batch, so
the batch size adapts to the load without a timer. Requests wait in a queue per payer, and payers
are served round robin, so a thousand requests of one payer do not delay another payer. The requests
of one payer keep their order.

The carrier is a socket (`actors/transport/sockets.py`) or a Ray actor call
(`actors/transport/actor_calls.py`). A batch is limited in number and weight, so encoding it does
not block the event loops. A large request is sent alone, so small ones do not wait for it. Replies
are delivered in slices. A callback that raises is logged; the channel and other replies are not
affected. Decisions fairness-and-long-work and ledger-writer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from actors.process.slices import Slices
from core.errors import ErrorCode, ServiceError
from core.market.sharing.fair_queue import FairQueue
from core.market.sharing.fair_share import has_room

log = logging.getLogger("callboard.channel")

# A request heavier than `batch_weight` divided by this number is sent alone.
LARGE_PART: Final = 4

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class Channel(Generic[Request, Reply]):
    """Sends requests to one destination in batches of the requests that are waiting.

    Args:
        name: the destination's name, for messages.
        call: sends one batch and returns the replies in the order of the requests. The reply to a
            request that failed alone is an exception. If `call` raises, the exception is the reply
            to every request of the batch.
        capacity: the maximum number of waiting requests. Beyond it, `submit` raises OVERLOADED.
        batch_size: the maximum number of requests in one call.
        weight_of: returns the weight of a request, 0 or more. None: requests have no weight.
        batch_weight: the maximum weight of one call. A request heavier than a quarter of this
            weight is sent alone.
        on_close: closes the carrier.
    """

    def __init__(
        self,
        name: str,
        call: Callable[[list[Request]], Awaitable[Sequence[Reply | BaseException]]],
        *,
        capacity: int,
        batch_size: int,
        weight_of: Callable[[Request], int] | None = None,
        batch_weight: int = 0,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._call = call
        self._capacity = capacity
        self._batch_size = batch_size
        self._weight_of = weight_of
        self._batch_weight = batch_weight
        self._large_weight = batch_weight // LARGE_PART
        self._on_close = on_close
        self._waiting: FairQueue[int, tuple[Request, Callable[[Reply | BaseException], None]]]
        self._waiting = FairQueue()
        self._put_count = 0
        # The next request, which did not fit into the previous batch.
        self._next: tuple[Request, Callable[[Reply | BaseException], None]] | None = None
        # The requests of the call in flight that have no reply yet.
        self._open: deque[tuple[Request, Callable[[Reply | BaseException], None]]] = deque()
        self._pump: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether `submit` would refuse a request now."""
        return self.queued >= self._capacity

    def has_room(self, payer: str) -> bool:
        """Say whether a payer's share of the queue has room for one more request."""
        return has_room(self._waiting.waiting_of(payer), self.queued, self._capacity)

    @property
    def queued(self) -> int:
        """The number of requests that wait for the next call."""
        return len(self._waiting) + (self._next is not None)

    def submit(
        self, request: Request, done: Callable[[Reply | BaseException], None], payer: str = ""
    ) -> None:
        """Queue a request; call `done` with its reply, or with the exception of its batch.

        Args:
            payer: the request's payer; "" for requests of the service itself.

        Raises:
            ServiceError: OVERLOADED when `capacity` requests are waiting.
        """
        if self.is_full:
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"{self.queued} requests wait for {self._name}, limit {self._capacity}",
                retry_after_s=1,
            )
        self.submit_always(request, done, payer)

    def submit_always(
        self, request: Request, done: Callable[[Reply | BaseException], None], payer: str = ""
    ) -> None:
        """Queue a request that follows from accepted work; never refuse it.

        These requests are limited, because callers check `has_room` before they accept work.
        """
        self._put_count += 1
        self._waiting.put(payer, self._put_count, (request, done))
        if self._pump is None:
            self._pump = asyncio.get_running_loop().create_task(self._run())

    async def request(self, request: Request, payer: str = "") -> Reply:
        """Send one request and return its reply; the arguments are those of `submit`."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def done(reply: Reply | BaseException) -> None:
            if future.done():
                return
            if isinstance(reply, BaseException):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.submit(request, done, payer)
        return await future

    def close(self) -> None:
        """Stop; before this returns, all waiting and open requests fail with a ConnectionError.

        The outcome of these requests is unknown. Requests that are submitted later go to the closed
        carrier.
        """
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.cancel()
        self._on_close()
        self._fail_all()

    async def end(self) -> None:
        """Stop as `close` does, and return when the call in flight has ended.

        Then the call no longer uses its resources. Do not await this in a callback: the end of the
        call waits for the callback.
        """
        pump = self._pump
        self.close()
        if pump is not None:
            await asyncio.wait([pump])

    def _fail_all(self) -> None:
        closed = ConnectionError(f"the channel to {self._name} was closed")
        # The queue is emptied first, because a callback may submit its request again.
        failed, self._open = self._open, deque()
        while (waiting := self._take()) is not None:
            failed.append(waiting)
        for _, done in failed:
            self._deliver(done, closed)

    async def _run(self) -> None:
        pump = asyncio.current_task()
        try:
            while self.queued and self._pump is pump:
                batch = self._open = self._next_batch()
                size = len(batch)
                try:
                    replies: Sequence[Reply | BaseException] = await self._call(
                        [request for request, _ in batch]
                    )
                    assert len(replies) == size, f"{self._name}: {len(replies)} for {size}"
                except Exception as error:  # the edge to another process: its failure is a reply
                    replies = [error] * size
                slices = Slices()
                for reply in replies:
                    if self._pump is not pump:
                        return  # closed by the last callback
                    self._deliver(batch.popleft()[1], reply)
                    await slices.pause()
        except asyncio.CancelledError:
            if self._pump is pump:  # cancelled with its loop, not by `close`
                self._fail_all()
            raise
        finally:
            if self._pump is pump:
                self._pump = None

    def _next_batch(self) -> deque[tuple[Request, Callable[[Reply | BaseException], None]]]:
        """Take waiting requests, up to the limits of one call."""
        batch: deque[tuple[Request, Callable[[Reply | BaseException], None]]] = deque()
        weight, is_large = 0, False
        while len(batch) < self._batch_size and (waiting := self._take()) is not None:
            if self._weight_of is not None:
                own_weight = self._weight_of(waiting[0])
                weight += own_weight
                is_large = own_weight > self._large_weight
                if batch and (is_large or weight > self._batch_weight):
                    self._next = waiting
                    break
            batch.append(waiting)
            if is_large:
                break
        return batch

    def _take(self) -> tuple[Request, Callable[[Reply | BaseException], None]] | None:
        waiting, self._next = self._next, None
        return self._waiting.take() if waiting is None else waiting

    def _deliver(
        self, done: Callable[[Reply | BaseException], None], reply: Reply | BaseException
    ) -> None:
        try:
            done(reply)
        except Exception:  # the edge of the pump: other requests get their replies even so
            log.exception("a callback raised channel=%s", self._name)
