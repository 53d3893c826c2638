"""Requests to owners: asked again while the owner cannot answer yet, refused at once otherwise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from actors.gateway.gateway import Gateway
from actors.transport.messages import (
    CancelReply,
    CancelRequest,
    NotYet,
    OwnerReply,
    OwnerRequest,
    PublishReply,
    PublishRequest,
    ResumeReply,
    ResumeRequest,
    WatchReply,
)
from actors.transport.wire import answer_requests, packed
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.workflow.transitions import is_terminal
from ledger.reads.stored import StoredWorkflow, WorkflowHead
from tests.actors.transport.listening import listening
from tests.simulation.shapes import CAPABILITIES, compiled

OWNER, OTHER, LOST = "owner-1", "owner-2", "owner-lost"
PAYER = "did:test:payer"
STORED = PublishReply(workflow_id="w", task_id="t", status="pending")
REPLACED = NotYet(ErrorCode.OVERLOADED, "the workflow's owner is being replaced", retry_after_s=1)
REFUSED = ServiceError(ErrorCode.INSUFFICIENT_CREDITS, "too little")
CANCELLED = CancelReply(workflow_id="w", cancelled_ms=1, nodes_affected=1, refunded_micro=1)
RESUMED = ResumeReply(workflow_id="w", resumed_ms=1)
CANCEL = CancelRequest(workflow_id="w", reason="r", details="", actor_did=PAYER)
RESUME = ResumeRequest(workflow_id="w", actor_did=PAYER)


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
    server = await listening(tmp_path, OWNER, owner.methods())
    gateway.owners.set_names([OWNER])
    asked = packed(request()) if is_packed else request()
    assert await gateway.publish(asked) == STORED
    assert len(owner.calls) == 3
    await server.close()


async def test_a_refusal_is_the_answer(gateway: Gateway, tmp_path: Path) -> None:
    owner = Owner([REFUSED])
    server = await listening(tmp_path, OWNER, owner.methods())
    gateway.owners.set_names([OWNER])
    with pytest.raises(ServiceError) as error:
        await gateway.publish(request())
    assert error.value.code is ErrorCode.INSUFFICIENT_CREDITS
    assert len(owner.calls) == 1
    await server.close()


def stored(owner: str, status: str = "running", *, quarantined_ms: int | None = None) -> Any:
    """Return a workflow as in its head."""
    row = {"id": "w", "owner": owner, "status": status, "payer_did": PAYER}
    return StoredWorkflow({**row, "quarantined_ms": quarantined_ms})


class Heads:
    """The stored heads of one workflow, one for each read; the last one stays."""

    def __init__(self, gateway: Gateway, *workflows: StoredWorkflow) -> None:
        self.workflows = list(workflows)
        self.reads = 0
        gateway.reads.head = self.read  # type: ignore[method-assign]
        gateway.reads.has_ended = self._has_ended  # type: ignore[method-assign]

    async def read(self, workflow_id: str, caller_did: str) -> WorkflowHead | None:
        """Stand for the read."""
        self.reads += 1
        workflow = self.workflows.pop(0) if len(self.workflows) > 1 else self.workflows[0]
        return WorkflowHead(workflow, is_agent=False, record_bytes=1)

    async def _has_ended(self, workflow_id: str) -> bool:
        return is_terminal(self.workflows[0].status)


Ask = Callable[[Gateway, StoredWorkflow], Any]
DRIVEN: dict[str, tuple[Ask, OwnerReply]] = {
    "cancel": (lambda gateway, known: gateway.cancel(CANCEL, known), CANCELLED),
    "resume": (lambda gateway, known: gateway.resume(RESUME, known), RESUMED),
}


@pytest.mark.parametrize("kind", DRIVEN)
async def test_what_its_owner_lost_is_asked_of_the_one_that_takes_it_over(
    gateway: Gateway, tmp_path: Path, kind: str
) -> None:
    """The owner that was asked instead said that the workflow had finished."""
    ask, answer = DRIVEN[kind]
    owner = Owner([None, None, answer])
    server = await listening(tmp_path, OWNER, owner.methods())
    gateway.owners.set_names([OWNER])
    lost = stored(LOST, quarantined_ms=1)
    heads = Heads(gateway, lost, stored(OWNER, quarantined_ms=1))
    assert await ask(gateway, lost) == answer
    assert len(owner.calls) == 3
    assert heads.reads == 2, "the caller has read the first head"
    await server.close()


@pytest.mark.parametrize(
    ("kind", "code"), [("cancel", "NOT_CANCELLABLE"), ("resume", "CONFLICT")], ids=list(DRIVEN)
)
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "meanwhile"])
async def test_what_has_ended_is_refused_by_its_row(
    gateway: Gateway, tmp_path: Path, kind: str, code: str, *, is_known: bool
) -> None:
    owner = Owner([None])
    server = await listening(tmp_path, OWNER, owner.methods())
    gateway.owners.set_names([OWNER])
    Heads(gateway, stored(OWNER, "success"))
    known = stored(OWNER, "success" if is_known else "running", quarantined_ms=1)
    with pytest.raises(ServiceError) as error:
        await DRIVEN[kind][0](gateway, known)
    assert error.value.code == code
    assert len(owner.calls) == (0 if is_known else 1)
    await server.close()


async def test_a_wait_is_not_over_because_an_owner_does_not_drive_the_workflow(
    gateway: Gateway, tmp_path: Path
) -> None:
    """As while its owner is lost: the wait returned at once, with a workflow that ran on."""
    owner = Owner([None, WatchReply()])
    server = await listening(tmp_path, OWNER, owner.methods())
    gateway.owners.set_names([OWNER])
    Heads(gateway, stored(LOST), stored(OWNER))
    waiting = asyncio.create_task(gateway.wait_finished("w", 60.0, watched=False))
    async with asyncio.timeout(30):
        while len(owner.calls) < 2:
            await asyncio.sleep(0.01)
    assert not waiting.done()
    gateway._ends.tell("w")
    assert await waiting
    await server.close()


async def test_a_wait_without_an_owner_ends_in_its_time(gateway: Gateway) -> None:
    """A wait of 1 s took 15 s: the time of a request."""
    Heads(gateway, stored(LOST))
    began_s = time.monotonic()
    assert not await gateway.wait_finished("w", 0.2, watched=False)
    assert time.monotonic() - began_s < 5


async def test_a_wait_without_an_owner_ends_with_its_workflow(gateway: Gateway) -> None:
    Heads(gateway, stored(LOST), stored(LOST), stored(LOST, "success"))
    began_s = time.monotonic()
    assert await gateway.wait_finished("w", 60.0, watched=False)
    assert time.monotonic() - began_s < 15
