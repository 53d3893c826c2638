"""Sends many requests of one caller with a bound on their weight in flight.

Requests in a shared queue delay other callers, so a bulk holds its requests back until earlier ones
are answered. A request's own deadline starts when it is sent. Decision fairness-and-long-work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from actors.process.foreground import Foreground

Request = TypeVar("Request")
Reply = TypeVar("Reply")

# Requests sent per turn of the event loop, which takes 3 ms.
STEP: Final = 50
# Of the window, this part is used while there are single requests: one large workflow at a time.
FOREGROUND_PART: Final = 8


async def request_all(
    send: Callable[[Request], Awaitable[Reply]],
    requests: Sequence[Request],
    *,
    weight_of: Callable[[Request], int],
    weight_max: int,
    foreground: Foreground,
) -> list[Reply | BaseException]:
    """Send every request and return the replies, or the exceptions raised, in order.

    Args:
        send: sends one request and returns its reply.
        weight_of: the weight of a request, 0 or more.
        weight_max: most weight in flight; a heavier request is sent alone.
        foreground: single requests; beside them less is in flight, and they pass first.
    """
    weight_in_flight = 0
    room = asyncio.Event()

    def is_room(weight: int) -> bool:
        most = weight_max // FOREGROUND_PART if foreground.is_used else weight_max
        return not weight_in_flight or weight_in_flight + weight <= most

    def release(weight: int, _: object) -> None:
        nonlocal weight_in_flight
        weight_in_flight -= weight
        room.set()

    replies: list[asyncio.Future[Reply]] = []
    for number, request in enumerate(requests, 1):
        weight = weight_of(request)
        while not is_room(weight):
            room.clear()
            await room.wait()
            await foreground.let_pass()
        weight_in_flight += weight
        replies.append(asyncio.ensure_future(send(request)))
        replies[-1].add_done_callback(partial(release, weight))
        if number % STEP == 0:
            await asyncio.sleep(0)
    return await asyncio.gather(*replies, return_exceptions=True)
