"""Publishing a workflow once, whatever its members say: which try may go where.

Rules. (1) The key of a request never changes, and does not come of the workflow's id: the ledger
stores one workflow under it. (2) While no try has an unknown outcome, a try that was refused
without a trace (`Moved`, or OVERLOADED by a member that has no room) may be followed by one at
another member, under another id in one of its shards. (3) Once the outcome of a try is unknown the
id stays: the holder of its shard finds under the key what was stored. OVERLOADED is then no answer,
because it would tell the caller that nothing was stored. (4) Any other refusal is the caller's.

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

# Members that one request is shown to before it is refused: where all are full, each request
# would cost as many calls as there are members.
MEMBERS_TRIED_MAX: Final = 3
PUBLISH_TIMEOUT_S: Final = 15.0
# Of one bulk, in flight to the owners: other bulks wait for two calls, not for the whole bulk.
BULK_BYTES_IN_FLIGHT_MAX: Final = 2 * CALL_BYTES_MAX
# Requests of a bulk that are sent in one turn of the event loop, which takes 3 ms.
STEP: Final = 50

Request = TypeVar("Request")
Reply = TypeVar("Reply")


async def publish_once(
    owners: LiveOwners, request: PublishRequest | PackedPublish, timeout_s: float
) -> PublishReply:
    """Publish a workflow; return after its commit.

    Args:
        owners: the members and the map of shards.
        request: its workflow's id is new.
        timeout_s: how long tries are repeated, 0 or more.

    Raises:
        ServiceError: refused; LEDGER_UNAVAILABLE when the outcome is not known in time, or when no
            member could be asked.
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
        owners: as of `publish_once`.
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

    The deadline of a request begins when it is sent, so a bulk holds its requests back until
    earlier ones are answered. Decision fairness-and-long-work.

    Args:
        send: sends one request and returns its reply.
        weight_of: the weight of a request, 0 or more.
        weight_max: most weight in flight; a heavier request is sent alone.
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
    """Return the request under another id."""
    if request.workflow_id == workflow_id:
        return request
    if isinstance(request, PackedPublish):
        # Reading and packing a large workflow would hold the loop.
        return await asyncio.to_thread(with_workflow_id, request, workflow_id)
    return with_workflow_id(request, workflow_id)
