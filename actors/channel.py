"""The one transport between processes: a batch of requests out, a batch of replies back.

One call is in flight per destination; what arrives meanwhile queues behind it and leaves as the
next batch, so batches size themselves without a timer. Nothing above knows what carries the bytes:
a socket (`actors/sockets.py`) or a Ray actor call (`actors/calls.py`). design.md section 3.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from core.errors import ErrorCode, ServiceError

Request = TypeVar("Request")
Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """Counters since the channel was made."""

    name: str
    calls: int
    requests: int
    batch_max: int
    queued: int


class Channel(Generic[Request, Reply]):
    """Requests to one destination, batched by what is waiting.

    Args:
        name: for messages.
        call: carries one batch; replies in the order of the requests. An exception it raises goes
            to every request of that batch.
        capacity: most requests that may wait; beyond it OVERLOADED is raised.
        batch_size: most requests in one call.
        on_close: lets go of what carries the batches.
    """

    def __init__(
        self,
        name: str,
        call: Callable[[list[Request]], Awaitable[Sequence[Reply]]],
        *,
        capacity: int,
        batch_size: int,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._call = call
        self._capacity = capacity
        self._batch_size = batch_size
        self._on_close = on_close
        self._waiting: deque[tuple[Request, Callable[[Reply | BaseException], None]]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._calls = 0
        self._requests = 0
        self._batch_max = 0

    def __repr__(self) -> str:
        return f"<Channel {self._name} waiting={len(self._waiting)} calls={self._calls}>"

    def statistics(self) -> ChannelStatistics:
        """Return the counters."""
        return ChannelStatistics(
            self._name, self._calls, self._requests, self._batch_max, len(self._waiting)
        )

    def submit(self, request: Request, done: Callable[[Reply | BaseException], None]) -> None:
        """Queue a request; `done` gets the reply, or the exception of its batch.

        Raises:
            ServiceError: OVERLOADED when `capacity` requests are waiting.
        """
        if len(self._waiting) >= self._capacity:
            raise ServiceError(
                ErrorCode.OVERLOADED,
                f"{len(self._waiting)} requests wait for {self._name}, limit {self._capacity}",
                retry_after_s=1,
            )
        self._waiting.append((request, done))
        if self._pump is None:
            self._pump = asyncio.get_running_loop().create_task(self._run())

    async def request(self, request: Request) -> Reply:
        """Send one request and return its reply."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

        def done(reply: Reply | BaseException) -> None:
            if future.done():
                return
            if isinstance(reply, BaseException):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.submit(request, done)
        return await future

    def close(self) -> None:
        """Stop; what waits or is under way is answered with a ConnectionError: outcome unknown."""
        if self._pump is not None:
            self._pump.cancel()
        self._on_close()

    async def _run(self) -> None:
        batch: list[tuple[Request, Callable[[Reply | BaseException], None]]] = []
        try:
            while self._waiting:
                size = min(len(self._waiting), self._batch_size)
                batch = [self._waiting.popleft() for _ in range(size)]
                self._calls += 1
                self._requests += size
                self._batch_max = max(self._batch_max, size)
                try:
                    replies: Sequence[Reply | BaseException] = await self._call(
                        [request for request, _ in batch]
                    )
                    assert len(replies) == size, f"{self._name}: {len(replies)} for {size}"
                except Exception as error:  # the edge to another process: its failure is a reply
                    replies = [error] * size
                answered, batch = batch, []
                for (_, done), reply in zip(answered, replies, strict=True):
                    done(reply)
        except asyncio.CancelledError:
            closed = ConnectionError(f"the channel to {self._name} was closed")
            for _, done in [*batch, *self._waiting]:
                done(closed)
            self._waiting.clear()
            raise
        finally:
            self._pump = None
