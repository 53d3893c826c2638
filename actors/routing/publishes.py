"""Publishes a workflow exactly once, with retries at other members.

Rules:
1. The command key of a request never changes and does not depend on the workflow's id. The ledger
   stores at most one workflow under a key.
2. A refusal stores nothing if it is `Moved`, or OVERLOADED from a member that has no room. If all
   earlier tries ended with such refusals, the next try may go to another member. This try has
   another workflow id, in a shard of that member.
3. After a try with an unknown outcome, the id stays the same. The holder of its shard finds by the
   key whether the workflow was stored. OVERLOADED would tell the caller that nothing was stored, so
   it is no longer returned.
4. Any other refusal is returned to the caller.

Decision workflow-owners-and-shards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from actors.routing.live_owners import RETRY_DELAY_S, LiveOwners, Tries
from actors.transport.ledger_client import ledger_unavailable_error
from actors.transport.messages import (
    CALL_BYTES_MAX,
    Moved,
    NotYet,
    PackedPublish,
    PublishReply,
    PublishRequest,
)
from actors.transport.wire import with_workflow_id
from core.errors import ErrorCode, ServiceError

# The most members that one request tries. Without this limit, if all members are full, each request
# would call every member.
MEMBERS_TRIED_MAX: Final = 3
PUBLISH_TIMEOUT_S: Final = 15.0
# The most bytes of one bulk in flight. So other bulks wait for two calls, not for a whole bulk.
BULK_BYTES_IN_FLIGHT_MAX: Final = 2 * CALL_BYTES_MAX
# Requests of a bulk that are sent in one iteration of the event loop; 50 requests take 3 ms.
STEP: Final = 50

Request = TypeVar("Request")
Reply = TypeVar("Reply")


async def publish_once(
    owners: LiveOwners, request: PublishRequest | PackedPublish, timeout_s: float
) -> PublishReply:
    """Publish a workflow; return after its commit.

    Args:
        owners: the members and the map of shards.
        request: the publish. Its workflow id is new.
        timeout_s: how long tries are repeated, seconds, 0 or more.

    Raises:
        ServiceError: the publish is refused; LEDGER_UNAVAILABLE when the outcome is not known in
            time, or when no member could be reached.
    """
    tries = Tries(owners, time.monotonic() + timeout_s, RETRY_DELAY_S)
    refused: set[str] = set()
    is_open = False  # the outcome of a try is unknown
    while True:
        holder = owners.holder(request.workflow_id)
        try:
            reply = await owners.ask(request, request.payer_did, tries.deadline)
            assert isinstance(reply, PublishReply), reply
            return reply
        except ServiceError as error:
            refusal = error
        if not (_is_without_trace(refusal) or isinstance(refusal, NotYet)):
            raise refusal  # (4)
        is_open = is_open or not _is_without_trace(refusal)
        if is_open:
            await tries.pause(ledger_unavailable_error())  # (3)
            continue
        if holder is not None:
            refused.add(holder.member)
        other = None
        if len(refused) < MEMBERS_TRIED_MAX:
            other = owners.place(request.workflow_id, refused)  # (2)
        if other is None:
            if not isinstance(refusal, Moved):
                raise refusal
            await tries.pause(refusal)
            refused.clear()
            other = owners.place(request.workflow_id)
        if other is not None:
            request = await _under(request, other)


async def publish_all(
    owners: LiveOwners, requests: Sequence[PackedPublish]
) -> list[PublishReply | ServiceError]:
    """Publish many workflows; return a reply for each, in order.

    Args:
        owners: the members and the map of shards.
    """

    async def publish(request: PackedPublish) -> PublishReply:
        return await publish_once(owners, request, PUBLISH_TIMEOUT_S)

    replies = await request_all(
        publish,
        requests,
        weight_of=lambda request: len(request.body),
        weight_max=BULK_BYTES_IN_FLIGHT_MAX,
    )
    answers: list[PublishReply | ServiceError] = []
    for reply in replies:
        if not isinstance(reply, PublishReply | ServiceError):
            raise reply
        answers.append(reply)
    return answers


async def request_all(
    send: Callable[[Request], Awaitable[Reply]],
    requests: Sequence[Request],
    *,
    weight_of: Callable[[Request], int],
    weight_max: int,
) -> list[Reply | BaseException]:
    """Send every request and return the replies, or the exceptions raised, in order.

    The timeout of a request starts when the request is sent. So only a part of a bulk is sent at
    once; further requests follow when earlier requests are answered.
    Decision fairness-and-long-work.

    Args:
        send: sends one request and returns its reply.
        weight_of: returns the weight of a request, 0 or more.
        weight_max: the most weight in flight. A heavier request is sent alone.
    """
    weight_in_flight = 0
    room = asyncio.Event()

    def is_room(weight: int) -> bool:
        return not weight_in_flight or weight_in_flight + weight <= weight_max

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
        weight_in_flight += weight
        replies.append(asyncio.ensure_future(send(request)))
        replies[-1].add_done_callback(partial(release, weight))
        if number % STEP == 0:
            await asyncio.sleep(0)
    return await asyncio.gather(*replies, return_exceptions=True)


def _is_without_trace(refusal: ServiceError) -> bool:
    if isinstance(refusal, NotYet):
        return isinstance(refusal, Moved)
    return refusal.code is ErrorCode.OVERLOADED


async def _under(
    request: PublishRequest | PackedPublish, workflow_id: str
) -> PublishRequest | PackedPublish:
    """Return the request, changed to this workflow id."""
    if request.workflow_id == workflow_id:
        return request
    if isinstance(request, PackedPublish):
        # In a thread: decoding and encoding a large workflow would block the event loop.
        return await asyncio.to_thread(with_workflow_id, request, workflow_id)
    return with_workflow_id(request, workflow_id)
