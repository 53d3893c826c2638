"""Requests about a workflow: asked of the holder of its shard, refused by its row."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from actors.gateway.gateway import Gateway
from actors.routing.live_owners import LiveOwners
from actors.transport.messages import (
    CancelReply,
    CancelRequest,
    Moved,
    NodeResultReply,
    NodeResultRequest,
    NotYet,
    OwnerReply,
    ResumeReply,
    ResumeRequest,
    WatchReply,
    WatchRequest,
)
from core.errors import ErrorCode, ServiceError
from core.shards.lease_messages import Lease, MemberState, Renewal
from core.workflow.transitions import NodeStatus, is_terminal
from ledger.reads.stored import StoredWorkflow, WorkflowHead
from tests.actors.gateway.maps import lease, member
from tests.actors.gateway.served import (
    ID,
    OTHER,
    OWNER,
    PAYER,
    Owner,
    gateway_of,
    members_of,
)
from tests.platform.waiting import until

CANCELLED = CancelReply(workflow_id=ID, cancelled_ms=1, nodes_affected=1, refunded_micro=1)
RESUMED = ResumeReply(workflow_id=ID, resumed_ms=1)
CANCEL = CancelRequest(workflow_id=ID, reason="r", details="", actor_did=PAYER)
RESUME = ResumeRequest(workflow_id=ID, actor_did=PAYER)
RESULT = NodeResultRequest(workflow_id=ID, node="a", attempt=1, verify_attempt=0)
TAKEN = NodeResultReply(status=NodeStatus.SUCCESS)
MOVED = Moved(ErrorCode.OVERLOADED, "the shard is another's", retry_after_s=1)
REREADING = NotYet(ErrorCode.OVERLOADED, "the workflow's rows are being read", retry_after_s=1)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway that knows one member, which holds all shards."""
    async with gateway_of(tmp_path, *members_of(OWNER)) as made:
        yield made


def stored(status: str = "running", *, quarantined_ms: int | None = 1) -> Any:
    """Return a workflow as in its head."""
    row = {"id": ID, "status": status, "payer_did": PAYER, "quarantined_ms": quarantined_ms}
    return StoredWorkflow(row)


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


async def never(workflow_id: str) -> bool:
    """Stand for a look at the row that has not seen the end yet."""
    return False


Ask = Callable[[Gateway], Any]
DRIVEN: dict[str, tuple[Ask, OwnerReply]] = {
    "cancel": (lambda gateway: gateway.cancel(CANCEL, stored()), CANCELLED),
    "resume": (lambda gateway: gateway.resume(RESUME, stored()), RESUMED),
}


@pytest.mark.parametrize("kind", DRIVEN)
async def test_holder_of_the_shard_is_asked_and_no_row_is_read(
    gateway: Gateway, tmp_path: Path, kind: str
) -> None:
    ask, answer = DRIVEN[kind]
    heads = Heads(gateway, stored())
    gateway.owners.use_lease(lease([member(OTHER), member(OWNER)], [OWNER, OTHER]))
    async with Owner([answer]).listening(tmp_path, OWNER) as owner:
        assert await ask(gateway) == answer
    assert (len(owner.calls), heads.reads) == (1, 0)


@pytest.mark.parametrize("kind", DRIVEN)
async def test_member_that_drains_is_asked_for_what_it_holds(
    gateway: Gateway, tmp_path: Path, kind: str
) -> None:
    ask, answer = DRIVEN[kind]
    draining = member(OWNER, state=MemberState.DRAINING)
    gateway.owners.use_lease(lease([draining, member(OTHER)], [OWNER]))
    async with Owner([answer]).listening(tmp_path, OWNER):
        assert await ask(gateway) == answer


@pytest.mark.parametrize("kind", DRIVEN)
async def test_what_has_moved_is_asked_of_its_new_holder(
    gateway: Gateway, tmp_path: Path, kind: str
) -> None:
    ask, answer = DRIVEN[kind]
    Heads(gateway, stored())
    both = members_of(OWNER, OTHER)
    gateway.owners.use_lease(lease(both, [OWNER]))
    async with (
        Owner([MOVED]).listening(tmp_path, OWNER) as former,
        Owner([answer]).listening(tmp_path, OTHER),
    ):
        asking = asyncio.create_task(ask(gateway))
        await until(lambda: former.calls)
        gateway.owners.use_lease(lease(both, [OTHER], map_version=2))
        async with asyncio.timeout(30):
            assert await asking == answer


@pytest.mark.parametrize("kind", DRIVEN)
async def test_shard_without_a_live_holder_is_waited_for(
    gateway: Gateway, tmp_path: Path, kind: str
) -> None:
    """As after a crash, until another member has taken it."""
    ask, answer = DRIVEN[kind]
    heads = Heads(gateway, stored())
    gateway.owners.use_lease(lease([member("dead", is_live=False)]))
    asking = asyncio.create_task(ask(gateway))
    await until(lambda: heads.reads)
    async with Owner([answer]).listening(tmp_path, OTHER):
        gateway.owners.use_lease(lease(members_of(OTHER), map_version=2))
        async with asyncio.timeout(30):
            assert await asking == answer


@pytest.mark.parametrize("kind", DRIVEN)
async def test_what_its_owner_does_not_drive_yet_is_asked_again(
    gateway: Gateway, tmp_path: Path, kind: str
) -> None:
    """Its row says that it has not ended."""
    ask, answer = DRIVEN[kind]
    heads = Heads(gateway, stored())
    async with Owner([None, REREADING, None, answer]).listening(tmp_path, OWNER) as owner:
        assert await ask(gateway) == answer
    assert (len(owner.calls), heads.reads) == (4, 3)


class ImpatientOwners(LiveOwners):
    """Owners of whose map no change is waited for."""

    async def wait_change(self, timeout_s: float) -> None:
        """Say that a request made a pause."""
        raise AssertionError("the row of what is not driven is read at once")


async def no_map(renewal: Renewal) -> Lease:
    """Tell nothing."""
    raise AssertionError("the map is not followed here")


@pytest.mark.parametrize(
    ("kind", "code"), [("cancel", "NOT_CANCELLABLE"), ("resume", "CONFLICT")], ids=list(DRIVEN)
)
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "meanwhile"])
async def test_what_has_ended_is_refused_by_its_row(
    gateway: Gateway, tmp_path: Path, kind: str, code: str, *, is_known: bool
) -> None:
    heads = Heads(gateway, stored("success"))
    known = stored("success" if is_known else "running")
    gateway.owners = owners = ImpatientOwners(gateway.settings, lambda *_: None, no_map, machine="")
    owners.use_lease(lease(members_of(OWNER)))
    async with Owner([None]).listening(tmp_path, OWNER) as owner:
        with pytest.raises(ServiceError) as error:
            await (
                gateway.cancel(CANCEL, known) if kind == "cancel" else gateway.resume(RESUME, known)
            )
    assert error.value.code == code
    assert (len(owner.calls), heads.reads) == ((0, 0) if is_known else (1, 1))
    owners.close()


async def test_result_of_a_workflow_that_has_ended_is_sent_as_late(
    gateway: Gateway, tmp_path: Path
) -> None:
    """Its holder does not drive it any more; only the refusal is recorded."""
    Heads(gateway, stored(), stored("success"))
    async with Owner([None, TAKEN]).listening(tmp_path, OWNER) as owner:
        assert await gateway.node_result(RESULT) == TAKEN
    assert [getattr(one, "is_late", None) for one in owner.requests] == [False, True]


async def test_wait_registers_without_a_read_and_is_over_when_told(
    gateway: Gateway, tmp_path: Path
) -> None:
    heads = Heads(gateway, stored())
    async with Owner([WatchReply()]).listening(tmp_path, OWNER) as owner:
        waiting = asyncio.create_task(gateway.wait_finished(ID, 60.0, watched=False))
        await until(lambda: owner.calls)
        assert not waiting.done()
        gateway._ends.tell(ID)
        async with asyncio.timeout(30):
            assert await waiting
    assert heads.reads == 0


async def test_a_wait_is_not_over_because_an_owner_does_not_drive_the_workflow(
    gateway: Gateway, tmp_path: Path
) -> None:
    """As while it is restored: the wait returned at once, with a workflow that ran on."""
    Heads(gateway, stored())
    async with Owner([None, WatchReply()]).listening(tmp_path, OWNER) as owner:
        waiting = asyncio.create_task(gateway.wait_finished(ID, 60.0, watched=False))
        await until(lambda: len(owner.calls) == 2)
        assert not waiting.done()
        gateway._ends.tell(ID)
        async with asyncio.timeout(30):
            assert await waiting


async def test_a_wait_without_an_owner_ends_in_its_time(tmp_path: Path) -> None:
    """A wait of 1 s took 15 s: the time of a request."""
    async with gateway_of(tmp_path) as gateway:
        Heads(gateway, stored())
        began_s = time.monotonic()
        assert not await gateway.wait_finished(ID, 0.2, watched=False)
        assert time.monotonic() - began_s < 5


async def test_a_wait_without_an_owner_ends_with_its_workflow(tmp_path: Path) -> None:
    async with gateway_of(tmp_path) as gateway:
        Heads(gateway, stored(), stored(), stored("success"))
        async with asyncio.timeout(30):
            assert await gateway.wait_finished(ID, 60.0, watched=False)


async def test_a_wait_is_told_to_the_next_holder_of_the_shard(tmp_path: Path) -> None:
    """It did not know who waited: after a crash the answer came with the second look at the row."""
    async with gateway_of(tmp_path, *members_of(OWNER, OTHER)) as gateway:
        heads = Heads(gateway, stored())
        async with Owner([WatchReply()]).listening(tmp_path, OTHER) as owner:
            waiting = asyncio.create_task(gateway.wait_finished(ID, 60.0, watched=True))
            await until(lambda: gateway._ends.awaited_in([0]))
            gateway.owners.use_lease(lease([member(OTHER)], map_version=2))
            await until(lambda: owner.calls)
            (asked,) = owner.requests
            assert isinstance(asked, WatchRequest)
            assert (asked.workflow_id, asked.watcher) == (ID, gateway.owners.watcher)
            assert not waiting.done()
            gateway.owners.use_lease(lease(members_of(OTHER, "fourth"), map_version=3))
            gateway._ends.tell(ID)
            async with asyncio.timeout(30):
                assert await waiting
        assert (heads.reads, len(owner.calls)) == (0, 1), "its holder is the same by the third map"


async def test_a_wait_ends_when_the_next_holder_finds_the_workflow_ended(tmp_path: Path) -> None:
    async with gateway_of(tmp_path, *members_of(OWNER, OTHER)) as gateway:
        Heads(gateway, stored("success"))
        gateway.reads.has_ended = never  # type: ignore[method-assign]
        async with Owner([None]).listening(tmp_path, OTHER):
            waiting = asyncio.create_task(gateway.wait_finished(ID, 60.0, watched=True))
            await until(lambda: gateway._ends.awaited_in([0]))
            gateway.owners.use_lease(lease([member(OTHER)], map_version=2))
            await asyncio.wait((waiting,), timeout=30)
            assert waiting.result() is not None
