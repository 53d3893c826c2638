"""Many requests of one caller, of which only so much is under way at once.

What waits in a queue that is shared with other callers delays them, so a bulk keeps its requests to
itself until those before are answered. A request's own deadline begins when it is asked.
design.md section 3 (Fairness). Decision 0091.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from actors.process.foreground import Foreground

Request = TypeVar("Request")
Reply = TypeVar("Reply")

# So many begin within 3 ms; the loop is held for no longer.
STEP: Final = 50
# Of the window, this part is used while there are single requests: one large workflow at a time.
FOREGROUND_PART: Final = 8


async def ask_all(
    ask: Callable[[Request], Awaitable[Reply]],
    requests: Sequence[Request],
    *,
    weight_of: Callable[[Request], int],
    weight_max: int,
    foreground: Foreground,
) -> list[Reply | BaseException]:
    """Ask every request and return the replies, or what was raised, in order.

    Args:
        weight_of: the weight of a request, 0 or more.
        weight_max: most weight under way at once; a request that weighs more goes alone.
        foreground: single requests; beside them less is under way, and they pass first.
    """
    under_way = 0
    room = asyncio.Event()

    def is_room(weight: int) -> bool:
        most = weight_max // FOREGROUND_PART if foreground.is_used else weight_max
        return not under_way or under_way + weight <= most

    def ended(weight: int, _: object) -> None:
        nonlocal under_way
        under_way -= weight
        room.set()

    asked: list[asyncio.Future[Reply]] = []
    for number, request in enumerate(requests, 1):
        weight = weight_of(request)
        while not is_room(weight):
            room.clear()
            await room.wait()
            await foreground.let_pass()
        under_way += weight
        asked.append(asyncio.ensure_future(ask(request)))
        asked[-1].add_done_callback(partial(ended, weight))
        if number % STEP == 0:
            await asyncio.sleep(0)
    return await asyncio.gather(*asked, return_exceptions=True)
