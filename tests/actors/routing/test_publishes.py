"""A publish is stored once: which try may go to another member, and which may not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from actors.gateway.gateway import Gateway
from actors.routing.publishes import MEMBERS_TRIED_MAX, publish_once
from actors.transport.messages import (
    Moved,
    NotYet,
    OwnerReply,
    OwnerRequest,
    PackedPublish,
    PublishReply,
    PublishRequest,
)
from actors.transport.wire import packed
from core.errors import ErrorCode, ServiceError
from core.shards.lease_messages import MemberState
from core.shards.shard import shard_of
from tests.actors.gateway.maps import lease, member
from tests.actors.gateway.served import (
    FOURTH,
    FULL,
    ID,
    LOST,
    OTHER,
    OWNER,
    STORED,
    THIRD,
    Lost,
    Owner,
    gateway_of,
    members_of,
    request,
)

MOVED = Moved(ErrorCode.OVERLOADED, "the shard is another's", retry_after_s=1)
STARTING = NotYet(ErrorCode.OVERLOADED, "the workflow owner is still starting", retry_after_s=1)
REFUSED = ServiceError(ErrorCode.INSUFFICIENT_CREDITS, "too little")


class Scene:
    """Owners by name, and a gateway that knows them as members that hold the shards in turn."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = AsyncExitStack()
        self.gateway: Gateway

    async def start(self, answers: dict[str, Sequence[OwnerReply | Lost]]) -> dict[str, Owner]:
        """Let owners with these answers listen."""
        gateway = gateway_of(self.folder, *members_of(*answers))
        self.gateway = await self._stack.enter_async_context(gateway)
        owners = {}
        for name, given in answers.items():
            listening = Owner(given).listening(self.folder, name)
            owners[name] = await self._stack.enter_async_context(listening)
        return owners

    async def end(self) -> None:
        """End them."""
        await self._stack.aclose()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Owners that listen and their gateway."""
    made = Scene(tmp_path)
    yield made
    await made.end()


def publishes(owner: Owner) -> list[PublishRequest]:
    """Return the publishes that an owner got."""
    return [one for one in owner.requests if isinstance(one, PublishRequest)]


@pytest.mark.parametrize("is_packed", [False, True], ids=["single", "packed"])
@pytest.mark.parametrize("refusal", [MOVED, FULL], ids=["moved", "full"])
async def test_refusal_without_a_trace_is_followed_by_another_member_under_the_same_key(
    scene: Scene, refusal: ServiceError, *, is_packed: bool
) -> None:
    owners = await scene.start({OWNER: [refusal], OTHER: [STORED]})
    asked: PublishRequest | PackedPublish = packed(request()) if is_packed else request()
    assert await scene.gateway.publish(asked) == STORED
    (first,), (second,) = publishes(owners[OWNER]), publishes(owners[OTHER])
    assert (first.workflow_id, shard_of(second.workflow_id) % 2) == (ID, 1)
    assert first.command_key == second.command_key
    assert first.compiled == second.compiled


@pytest.mark.parametrize("unknown", [LOST, STARTING], ids=["lost", "not yet"])
@pytest.mark.parametrize("then", [MOVED, FULL], ids=["moved", "full"])
async def test_publish_of_unknown_outcome_stays_in_its_shard(
    scene: Scene, unknown: OwnerReply | Lost, then: ServiceError
) -> None:
    """A retry on another shard, with a new id under a key made of the id, held the money twice."""
    owners = await scene.start({OWNER: [unknown, then, then, STORED], OTHER: [STORED]})
    assert await scene.gateway.publish(request()) == STORED
    assert [one.workflow_id for one in publishes(owners[OWNER])] == [ID] * 4
    assert not owners[OTHER].calls


async def test_two_tries_hold_the_money_once(scene: Scene) -> None:
    """The first is stored and its reply lost; then its member has no room, another has."""
    stored: dict[str, str] = {}

    class Storing(Owner):
        async def _answer(self, batch: list[OwnerRequest]) -> list[OwnerReply]:
            for one in batch:
                assert isinstance(one, PublishRequest)
                if not isinstance(self.answers[0], ServiceError):
                    stored.setdefault(one.command_key, one.workflow_id)
            return await super()._answer(batch)

    await scene.start({})
    async with (
        Storing([LOST, FULL, MOVED, STORED]).listening(scene.folder, OWNER),
        Storing([STORED]).listening(scene.folder, OTHER),
    ):
        scene.gateway.owners.use_lease(lease(members_of(OWNER, OTHER)))
        assert await scene.gateway.publish(request()) == STORED
    assert stored == {"k": ID}


async def test_no_room_is_no_answer_once_something_may_be_stored(scene: Scene) -> None:
    """A caller that is told OVERLOADED publishes again, under another key."""
    await scene.start({OWNER: [LOST, FULL]})
    with pytest.raises(ServiceError) as refused:
        await publish_once(scene.gateway.owners, request(), 0.5)
    assert refused.value.code is ErrorCode.LEDGER_UNAVAILABLE


async def test_no_room_anywhere_is_the_answer_at_once_after_a_few_members(scene: Scene) -> None:
    owners = await scene.start({name: [FULL] for name in (OWNER, OTHER, THIRD, FOURTH)})
    with pytest.raises(ServiceError) as refused:
        await scene.gateway.publish(request())
    assert refused.value.args == FULL.args
    assert sum(len(owner.calls) for owner in owners.values()) == MEMBERS_TRIED_MAX


async def test_shard_that_has_moved_from_everywhere_is_asked_for_again(scene: Scene) -> None:
    """As while the only member has just started: what it will hold, the next map tells."""
    owners = await scene.start({OWNER: [MOVED, MOVED, STORED], OTHER: [MOVED]})
    assert await scene.gateway.publish(request()) == STORED
    keys = {one.command_key for owner in owners.values() for one in publishes(owner)}
    assert keys == {"k"}


async def test_member_that_refused_before_is_asked_again(scene: Scene) -> None:
    """The near one goes on refusing: the far one's first word was not its last."""
    owners = await scene.start({OWNER: [MOVED], OTHER: [MOVED, STORED]})
    far = member(OTHER, machine="there")
    scene.gateway.owners.use_lease(lease([member(OWNER), far]))
    assert await scene.gateway.publish(request()) == STORED
    assert [len(owners[name].calls) for name in (OWNER, OTHER)] == [2, 2]


async def test_other_refusals_are_the_callers(scene: Scene) -> None:
    owners = await scene.start({OWNER: [REFUSED], OTHER: [STORED]})
    with pytest.raises(ServiceError) as refused:
        await scene.gateway.publish(request())
    assert refused.value.code is ErrorCode.INSUFFICIENT_CREDITS
    assert not owners[OTHER].calls


@pytest.mark.parametrize("is_packed", [False, True], ids=["single", "packed"])
async def test_shard_without_a_live_holder_is_left_for_another(
    scene: Scene, *, is_packed: bool
) -> None:
    """Its id was chosen by a map that is old by now."""
    owners = await scene.start({OWNER: [STORED]})
    dead = member("dead", is_live=False)
    scene.gateway.owners.use_lease(lease([dead, member(OWNER)]))
    assert await scene.gateway.publish(packed(request()) if is_packed else request()) == STORED
    (asked,) = publishes(owners[OWNER])
    assert shard_of(asked.workflow_id) % 2 == 1


async def test_without_any_member_a_publish_is_unavailable(scene: Scene) -> None:
    await scene.start({})
    began_s = time.monotonic()
    with pytest.raises(ServiceError) as refused:
        await publish_once(scene.gateway.owners, request(), 0.3)
    assert refused.value.code is ErrorCode.LEDGER_UNAVAILABLE
    assert time.monotonic() - began_s < 5


async def test_publish_waits_for_a_member_that_comes(scene: Scene) -> None:
    """And does not wait longer than the map takes to arrive."""
    await scene.start({})
    publishing = asyncio.create_task(scene.gateway.publish(request()))
    async with Owner([STORED]).listening(scene.folder, OWNER):
        await asyncio.sleep(0)
        assert not publishing.done()
        scene.gateway.owners.use_lease(lease(members_of(OWNER)))
        async with asyncio.timeout(10):
            assert await publishing == STORED


async def test_member_that_drains_gets_what_is_placed_in_its_shards(scene: Scene) -> None:
    owners = await scene.start({OWNER: [STORED]})
    scene.gateway.owners.use_lease(lease([member(OWNER, state=MemberState.DRAINING)]))
    assert await scene.gateway.publish(request()) == STORED
    assert len(owners[OWNER].calls) == 1


@pytest.mark.parametrize("is_packed", [False, True], ids=["single", "packed"])
@pytest.mark.parametrize("is_raised", [False, True], ids=["its answer", "raised by its call"])
async def test_an_owner_that_cannot_answer_yet_is_asked_again(
    scene: Scene, *, is_packed: bool, is_raised: bool
) -> None:
    owners = await scene.start({OWNER: [STARTING, STARTING, STORED]})
    owners[OWNER].is_raising = is_raised
    reply = await scene.gateway.publish(packed(request()) if is_packed else request())
    assert isinstance(reply, PublishReply)
    assert reply == STORED
    assert len(owners[OWNER].calls) == 3
