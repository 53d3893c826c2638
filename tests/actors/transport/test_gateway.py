"""Requests to owners: asked again while the owner cannot answer yet, refused at once otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from actors.transport.gateway import Gateway
from actors.transport.messages import (
    NotYet,
    OwnerReply,
    OwnerRequest,
    PublishReply,
    PublishRequest,
)
from actors.transport.sockets import serve_batches
from actors.transport.wire import answer_requests, packed
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from tests.simulation.shapes import CAPABILITIES, compiled

OWNER = "owner-1"
STORED = PublishReply(workflow_id="w", task_id="t", status="pending")
REPLACED = NotYet(ErrorCode.OVERLOADED, "the workflow's owner is being replaced", retry_after_s=1)
REFUSED = ServiceError(ErrorCode.INSUFFICIENT_CREDITS, "too little")


class Owner:
    """Answers each call with the next of its answers, or raises it; repeats the last one."""

    def __init__(self, answers: list[OwnerReply]) -> None:
        self.answers = answers
        self.calls: list[list[OwnerRequest]] = []
        self.is_raising = False

    async def handle(self, bodies: list[bytes]) -> list[bytes]:
        """Answer every request of a call alike."""
        return await answer_requests(self._answer, bodies)

    async def _answer(self, batch: list[OwnerRequest]) -> list[OwnerReply]:
        self.calls.append(batch)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if self.is_raising and isinstance(answer, ServiceError):
            raise answer
        return [answer] * len(batch)

    def methods(self) -> dict[str, object]:
        """Return what the gateway calls, by name."""
        return {"handle": self.handle, "handle_bulk": self.handle, "finished": self.finished}

    async def finished(self, watcher: str) -> list[str]:
        """Tell of no end."""
        return []


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway without a database or Ray: only owners are asked."""
    gateway = Gateway(Settings(run_folder=str(tmp_path), database_url="postgresql://"))
    yield gateway
    await gateway.close()


def request() -> PublishRequest:
    """Return a request to publish a chain."""
    return PublishRequest(
        command_key="k",
        request_hash=b"",
        actor_did="did:test:payer",
        workflow_id="w",
        task_id="t",
        payer_did="did:test:payer",
        manifest_json="{}",
        compiled=compiled({"nodes": {"a": {"capabilityId": CAPABILITIES[0]}}}).compiled,
        is_dry_run=False,
        watcher="",
    )


@pytest.mark.parametrize("is_packed", [False, True], ids=["single", "packed"])
@pytest.mark.parametrize("is_raised", [False, True], ids=["its answer", "raised by its call"])
async def test_an_owner_that_cannot_answer_yet_is_asked_again(
    gateway: Gateway, tmp_path: Path, *, is_packed: bool, is_raised: bool
) -> None:
    """As while it is replaced, or while it reads the workflow's rows."""
    owner = Owner([REPLACED, REPLACED, STORED])
    owner.is_raising = is_raised
    server = await serve_batches(str(tmp_path), OWNER, owner.methods())
    assert server is not None
    gateway._set_owners([OWNER])
    asked = packed(request()) if is_packed else request()
    assert await gateway.publish(asked) == STORED
    assert len(owner.calls) == 3
    await server.close()


async def test_a_refusal_is_the_answer(gateway: Gateway, tmp_path: Path) -> None:
    owner = Owner([REFUSED])
    server = await serve_batches(str(tmp_path), OWNER, owner.methods())
    assert server is not None
    gateway._set_owners([OWNER])
    with pytest.raises(ServiceError) as error:
        await gateway.publish(request())
    assert error.value.code is ErrorCode.INSUFFICIENT_CREDITS
    assert len(owner.calls) == 1
    await server.close()
