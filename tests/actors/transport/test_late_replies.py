"""Replies that take long: others of their call do not wait for them, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actors.gateway.gateway import Gateway
from actors.transport.late_replies import LateReplies
from actors.transport.messages import (
    Late,
    NotYet,
    OwnerReply,
    OwnerRequest,
    PublishReply,
    PublishRequest,
)
from actors.transport.sockets import SocketServer
from actors.transport.wire import answer_requests, decode_reply
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from tests.actors.gateway.maps import lease
from tests.actors.gateway.served import OWNER, members_of, request
from tests.actors.transport.listening import listening
from tests.platform.waiting import until


class Owner:
    """Answers each request when the test says so, by its workflow's id."""

    def __init__(self) -> None:
        self.late = LateReplies()
        self.is_polled = asyncio.Event()
        self.replies: dict[str, asyncio.Future[OwnerReply]] = {}
        self.calls = 0

    async def handle(self, bodies: list[bytes]) -> list[bytes]:
        """Answer what is settled in time."""
        self.calls += 1
        return await answer_requests(self._answer, bodies)

    async def _answer(self, batch: list[OwnerRequest]) -> list[OwnerReply]:
        return await self.late.settled([self.reply(one.workflow_id) for one in batch])

    def reply(self, workflow_id: str) -> asyncio.Future[OwnerReply]:
        """Return what a workflow's request is answered by, of its id or name."""
        loop = asyncio.get_running_loop()
        return self.replies.setdefault(workflow_id[-1], loop.create_future())

    async def poll(self, *arguments: Any) -> Any:
        """Answer what was late, when it is there."""
        self.is_polled.set()
        return await self.late.take(*arguments)

    async def finished(self, watcher: str) -> list[str]:
        """Tell of no end."""
        await asyncio.Event().wait()
        return []


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Owner, SocketServer, Gateway]]:
    """An owner that listens, and a gateway without a database or Ray."""
    owner = Owner()
    methods = {"handle": owner.handle, "late": owner.poll, "finished": owner.finished}
    server = await listening(tmp_path, OWNER, methods)
    gateway = Gateway(Settings(run_folder=str(tmp_path), database_url="postgresql://"))
    gateway.owners.use_lease(lease(members_of(OWNER)))
    yield owner, server, gateway
    await gateway.close()
    await server.close()


def of(name: str) -> PublishRequest:
    """Return a request to publish of a payer and a workflow of that name, a hexadecimal digit."""
    return replace(request(), workflow_id=id_of(name), payer_did=f"did:test:{name}")


def id_of(name: str) -> str:
    """Return the id of the workflow of that name."""
    return f"01890000-0000-7000-8000-00000000000{name}"


def stored(name: str) -> PublishReply:
    """Return the answer to it."""
    return PublishReply(workflow_id=id_of(name), task_id="t", status="pending")


async def test_one_payers_slow_request_does_not_hold_up_anothers_in_its_call(
    served: tuple[Owner, SocketServer, Gateway],
) -> None:
    """The call was answered when all of it was committed: 8 s behind 20,000 steps."""
    owner, _, gateway = served
    owner.reply("b").set_result(stored("b"))
    owner.reply("c").set_result(stored("c"))
    slow = [asyncio.create_task(gateway.publish(of(name))) for name in ("a", "d")]
    async with asyncio.timeout(60):
        assert await gateway.publish(of("b")) == stored("b")
        assert await gateway.publish(of("c")) == stored("c")
        assert not any(task.done() for task in slow)
        for name in ("d", "a"):
            owner.reply(name).set_result(stored(name))
        assert await asyncio.gather(*slow) == [stored("a"), stored("d")]


async def test_a_late_refusal_is_raised(served: tuple[Owner, SocketServer, Gateway]) -> None:
    owner, _, gateway = served
    asked = asyncio.create_task(gateway.publish(of("a")))
    async with asyncio.timeout(60):
        await until(lambda: owner.late._kept)
        owner.reply("a").set_result(ServiceError(ErrorCode.INSUFFICIENT_CREDITS, "too little"))
        with pytest.raises(ServiceError) as error:
            await asked
    assert error.value.code is ErrorCode.INSUFFICIENT_CREDITS


async def test_a_late_reply_of_an_owner_that_ended_is_asked_for_again(
    served: tuple[Owner, SocketServer, Gateway], tmp_path: Path
) -> None:
    """With the same key: whether it was stored, only the ledger knows."""
    owner, server, gateway = served
    asked = asyncio.create_task(gateway.publish(of("a")))
    async with asyncio.timeout(60):
        # Asyncio leaves a connection open that it accepts while its server closes.
        await owner.is_polled.wait()
        await server.close()
        successor = Owner()
        successor.reply("a").set_result(stored("a"))
        methods = {
            "handle": successor.handle,
            "late": successor.late.take,
            "finished": successor.finished,
        }
        other = await listening(tmp_path, OWNER, methods)
        assert await asked == stored("a")
        await other.close()
    assert successor.calls == 1


async def test_a_token_of_another_process_is_answered_as_lost() -> None:
    late = LateReplies()
    pending: asyncio.Future[OwnerReply] = asyncio.get_running_loop().create_future()
    (kept,) = await late.settled([pending])
    assert isinstance(kept, Late)
    pending.set_result(None)
    mine, other = [decode_reply(body) for body in await late.take([kept.token, kept.token + 1])]
    assert mine is None
    assert isinstance(other, NotYet)
    assert not late._kept
