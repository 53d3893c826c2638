"""Calls the actors for a Serve replica: publishes, cancels, ledger commands, waiting, health.

A request about a workflow goes to the owner that holds the workflow's shard. Before each retry the
gateway reads the workflow's row, because no owner drives a workflow that has ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from actors.cluster.runtime import ensure_runtime, this_machine
from actors.dispatch.large_results import BLOB_CACHE_BYTES_MAX, Blobs
from actors.gateway.end_waiters import Ended, EndWaiters
from actors.gateway.timekeeper_watch import TimekeeperWatch
from actors.gateway.workflow_reads import RECORD_BYTES_MAX, WorkflowReads
from actors.process.cached_answer import CachedAnswer
from actors.routing.live_owners import LiveOwners, Tries
from actors.routing.publishes import PUBLISH_TIMEOUT_S, publish_all, publish_once
from actors.transport.actor_calls import ActorCall
from actors.transport.ledger_client import ledger_unavailable_error
from actors.transport.ledger_route import LedgerRoute
from actors.transport.messages import (
    CancelReply,
    CancelRequest,
    NodeResultReply,
    NodeResultRequest,
    NotYet,
    OwnerAnswer,
    OwnerRequest,
    PackedPublish,
    PublishReply,
    PublishRequest,
    ResumeReply,
    ResumeRequest,
    WatchRequest,
)
from actors.transport.names import LEDGERS, TIMEKEEPER
from actors.values.value_process import ValueProcess
from core.errors import ErrorCode, ServiceError
from core.metric_families import Key, Report
from core.settings import Settings
from core.shards.lease_messages import Lease, Renewal
from core.shards.shard import SHARDS
from core.workflow.transitions import is_terminal
from ledger.blobs import BlobStore
from ledger.commands import Command, Outcome
from ledger.features.offers import OfferIndex
from ledger.reads.reader import LedgerReader, StoredWorkflow

# Maximum age of a health check's result that is returned from the cache.
HEALTH_AGE_MAX_S: Final = 0.5

log = logging.getLogger("callboard.gateway")

REQUEST_TIMEOUT_S = 15.0
PING_TIMEOUT_S = 2.0
_HEALTHY = "healthy"
# Maximum delay between two retries. Each retry reads the workflow's row.
READ_DELAY_S_MAX = 1.0
# A waiting request reads the workflow's row at this interval, in case the notice is lost.
WAIT_POLL_S = 3.0


class OwnerCall(NamedTuple):
    """A request to an owner.

    `payer`: the DID in whose queue the request waits: the payer, or the caller of a cancellation or
    a resume. "" for requests of the service itself.
    """

    request: OwnerRequest
    payer: str


class Gateway:
    """Sends a replica's requests to the owners, the ledger and the timekeeper.

    Each replica has one gateway, created by `connect`.

    Args:
        settings: the deployment's settings.
        machine: Ray's id of this replica's machine.
        record_bytes_max: the size limit of a workflow record as JSON.
    """

    def __init__(
        self,
        settings: Settings,
        machine: str = "",
        *,
        record_bytes_max: int = RECORD_BYTES_MAX,
    ) -> None:
        self.settings = settings
        self.reader = LedgerReader(settings.database_url, pool_size=settings.reader_pool_size)
        self.offers = OfferIndex(settings.database_url)
        self._blob_store = BlobStore(settings.database_url, self.reader)
        self.blobs = Blobs(self._blob_store, cache_bytes_max=BLOB_CACHE_BYTES_MAX)
        self.value_process = ValueProcess(lambda owner_did: 1)
        self.reads = WorkflowReads(
            settings, self.reader, self.blobs, record_bytes_max=record_bytes_max
        )
        self._route = LedgerRoute(settings)
        self._ledger = self._route.client()
        self._ends = EndWaiters(settings.replica_requests_max)
        self._renew = self._route.renewals()
        self.owners = LiveOwners(
            settings,
            self._ends.tell,
            self._renew,
            machine=machine,
            on_moved=self._watch_moved,
        )
        self._rewatches: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        # This replica's counters, reported to the timekeeper for `/metrics`.
        self.counters: Counter[Key] = Counter()
        self._ask_ledgers = {name: ActorCall(name, "ping") for name in LEDGERS}
        self._ask_timekeeper = ActorCall(TIMEKEEPER, "ping")
        self._health = CachedAnswer(self._check_components, age_max_s=HEALTH_AGE_MAX_S)
        self._readiness = CachedAnswer(self._check_postgres, age_max_s=HEALTH_AGE_MAX_S)

    @classmethod
    async def connect(cls, settings: Settings) -> Gateway:
        """Return a gateway of a replica; start the actors that do not run.

        The gateway keeps its map of the shards up to date until `close`.
        """
        await asyncio.to_thread(ensure_runtime, settings)
        gateway = cls(settings, this_machine())
        gateway.owners.follow()
        watch = TimekeeperWatch(settings, gateway._report)
        gateway._watching = asyncio.create_task(watch.run())
        return gateway

    async def close(self) -> None:
        """Cancel every task and close every connection."""
        for task in (self._watching, *self._rewatches):
            if task is not None:
                task.cancel()
        self.owners.close()
        await self._route.close()
        self.value_process.close()
        await self._blob_store.close()
        await self.offers.close()
        await self.reader.close()

    # -- requests ---------------------------------------------------------------------------------

    async def publish(self, request: PublishRequest | PackedPublish) -> PublishReply:
        """Store and start a workflow; return after its commit.

        Raises:
            ServiceError: the publish is refused, or its outcome is unknown after the timeout
                (LEDGER_UNAVAILABLE).
        """
        return await publish_once(self.owners, request, PUBLISH_TIMEOUT_S)

    async def publish_bulk(
        self, requests: Sequence[PackedPublish]
    ) -> list[PublishReply | ServiceError]:
        """Publish many workflows; return a reply for each, in order."""
        return await publish_all(self.owners, requests)

    async def cancel(self, request: CancelRequest, stored: StoredWorkflow) -> CancelReply:
        """Cancel a workflow at its owner; return after the commit.

        Args:
            stored: the workflow's rows, which the caller has just read.

        Raises:
            ServiceError: NOT_CANCELLABLE when the workflow has ended.
        """

        def asked(now: StoredWorkflow) -> OwnerCall:
            if is_terminal(now.status):
                raise _unexpected(ErrorCode.NOT_CANCELLABLE, now, "that has not ended")
            return OwnerCall(request, request.actor_did)

        reply = await self._request_driver(request.workflow_id, asked, asked(stored))
        assert isinstance(reply, CancelReply)
        return reply

    async def resume(self, request: ResumeRequest, stored: StoredWorkflow) -> ResumeReply:
        """Resume a quarantined workflow at its owner; return after the commit.

        Args:
            stored: the workflow's rows, which the caller has just read.

        Raises:
            ServiceError: CONFLICT when the workflow is not quarantined.
        """

        def asked(now: StoredWorkflow) -> OwnerCall:
            if is_terminal(now.status) or now.row["quarantined_ms"] is None:
                raise _unexpected(ErrorCode.CONFLICT, now, "that is quarantined")
            return OwnerCall(request, request.actor_did)

        reply = await self._request_driver(request.workflow_id, asked, asked(stored))
        assert isinstance(reply, ResumeReply)
        return reply

    async def node_result(self, request: NodeResultRequest) -> NodeResultReply:
        """Send a node's result to the owner of its workflow; return after the commit.

        Raises:
            ServiceError: ALREADY_SETTLED or ESCROW_RELEASED when the result came too late.
        """

        def asked(now: StoredWorkflow) -> OwnerCall:
            return OwnerCall(replace(request, is_late=is_terminal(now.status)), now.payer_did)

        reply = await self._request_driver(request.workflow_id, asked)
        assert isinstance(reply, NodeResultReply)
        return reply

    async def commit(self, command: Command) -> Outcome:
        """Commit one ledger command.

        Raises:
            ServiceError: the ledger refused the command, or cannot be reached.
        """
        outcome = await self._ledger.commit(command, timeout_s=REQUEST_TIMEOUT_S)
        if outcome.error is not None:
            raise ServiceError(outcome.error, outcome.detail)
        return outcome

    async def read_cluster(self) -> Lease:
        """Return the members and shards that the ledger knows now.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE when the ledger does not answer in time.
        """
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                return await self._renew(Renewal(member=""))
        except (
            Exception
        ) as error:  # the edge to another process: any error means that it does not answer
            raise ledger_unavailable_error() from error

    async def commit_many(self, commands: Sequence[Command]) -> list[Outcome]:
        """Commit several commands together; return their outcomes in order.

        A refused command does not raise: its outcome holds the error.
        """
        return list(
            await asyncio.gather(
                *(self._ledger.commit(c, timeout_s=REQUEST_TIMEOUT_S) for c in commands)
            )
        )

    async def _request_driver(
        self,
        workflow_id: str,
        asked: Callable[[StoredWorkflow], OwnerCall | None],
        question: OwnerCall | None = None,
        *,
        deadline: float | None = None,
    ) -> OwnerAnswer:
        """Send a request to the owner that holds a workflow's shard; return its answer.

        Before each retry the workflow's row is read.

        Args:
            asked: returns the request to send for the workflow's current rows. If it returns None,
                no request is sent, and this function returns None.
            question: the first request. None: the row is read first, and `asked` is called.
            deadline: a time of `time.monotonic()`. None: in `REQUEST_TIMEOUT_S`.

        Raises:
            ServiceError: the owner refuses the request; the deadline has passed (the owner's last
                `NotYet`, or LEDGER_UNAVAILABLE); the workflow does not exist (NOT_FOUND); or
                `asked` raises.
        """
        if deadline is None:
            deadline = time.monotonic() + REQUEST_TIMEOUT_S
        tries = Tries(self.owners, deadline, READ_DELAY_S_MAX)
        refusal = ledger_unavailable_error()
        while True:
            is_read = question is None
            question = question or asked(await self._stored(workflow_id))
            if question is None:
                return None
            try:
                reply = await self.owners.ask(*question, deadline)
                if reply is not None:
                    return reply
            except NotYet as error:
                refusal = error
                is_read = True
            question = None
            # If the row was not read yet, it is read without a pause. Usually the row shows that
            # the workflow has ended.
            if is_read:
                await tries.pause(refusal)

    async def _stored(self, workflow_id: str) -> StoredWorkflow:
        head = await self.reads.head(workflow_id, "")
        if head is None:
            raise ServiceError(ErrorCode.NOT_FOUND, f"there is no workflow {workflow_id}")
        return head.workflow

    # -- waiting ----------------------------------------------------------------------------------

    async def wait_finished(
        self, workflow_id: str, timeout_s: float, *, watched: bool
    ) -> Ended | None:
        """Wait until a workflow has ended; return None after the timeout.

        Args:
            timeout_s: seconds, 0 or more.
            watched: whether the workflow was published with this gateway as its watcher.
        """
        deadline = time.monotonic() + timeout_s
        with self._ends.awaited(workflow_id) as end:
            if end.done():
                return end.result()
            if not watched and not await self._watch(workflow_id, deadline):
                return Ended()
            while True:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return None
                await asyncio.wait((end,), timeout=min(left_s, WAIT_POLL_S))
                if end.done():
                    return end.result()
                if await self.reads.has_ended(workflow_id):
                    return Ended()

    async def _watch(self, workflow_id: str, deadline: float) -> bool:
        """Register this gateway as a watcher at the workflow's owner.

        While no owner drives the workflow, its row is read, which shows whether it has ended.

        Returns: False if the workflow has ended. True in every other case, even if the registration
        failed: `wait_finished` reads the row, too.
        """
        watch = OwnerCall(WatchRequest(workflow_id=workflow_id, watcher=self.owners.watcher), "")

        def asked(now: StoredWorkflow) -> OwnerCall | None:
            return None if is_terminal(now.status) else watch

        try:
            reply = await self._request_driver(workflow_id, asked, watch, deadline=deadline)
            return reply is not None
        except ServiceError as error:
            log.info("not watched workflow=%s error=%s", workflow_id, error)
            return True

    def _watch_moved(self, shards: Collection[int]) -> None:
        """Register again as a watcher of the awaited workflows of these shards.

        A new owner of a shard restores the workflows from their rows, which contain no watchers.
        """
        for workflow_id in self._ends.awaited_in(shards):
            task = asyncio.get_running_loop().create_task(self._watch_again(workflow_id))
            self._rewatches.add(task)
            task.add_done_callback(self._rewatches.discard)

    async def _watch_again(self, workflow_id: str) -> None:
        if not await self._watch(workflow_id, time.monotonic() + REQUEST_TIMEOUT_S):
            self._ends.tell(workflow_id)

    def _report(self) -> Report:
        gauges: dict[Key, float] = {("callboard_processes", "replica"): 1}
        return Report(self.owners.watcher, dict(self.counters), gauges)

    async def ask_timekeeper(self, method: str) -> Any:
        """Call a method of the timekeeper that takes no arguments.

        Raises:
            ServiceError: OVERLOADED when the timekeeper does not answer in time.
        """
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                return await ActorCall(TIMEKEEPER, method)()
        except Exception as error:  # the edge to another process: it is starting, or frozen
            detail = f"the timekeeper does not answer ({type(error).__name__}): repeat the request"
            raise ServiceError(ErrorCode.OVERLOADED, detail, retry_after_s=1) from error

    # -- health -----------------------------------------------------------------------------------

    async def components(self) -> dict[str, str]:
        """Return `healthy`, or the defect, of each component.

        The result is cached for `HEALTH_AGE_MAX_S`. Concurrent callers share one check.
        """
        return await self._health.get()

    async def is_ready(self) -> bool:
        """Say whether this replica can serve: only Postgres must answer.

        The actors are not called: after the loss of a machine, such calls are slow on all machines,
        and every replica would be unready. The result is cached for `HEALTH_AGE_MAX_S`.
        """
        return await self._readiness.get() == _HEALTHY

    async def _check_postgres(self) -> str:
        return await _check_call(self.reader.ping())

    async def _check_components(self) -> dict[str, str]:
        ledger, postgres, timekeepers = await asyncio.gather(
            _check_call(self._ask_ledgers[self._route.actor]()),
            self._check_postgres(),
            self._check_timekeeper(),
        )
        unheld = self.owners.map.unheld
        workflows = f"{unheld} of {SHARDS} shards have no live owner" if unheld else _HEALTHY
        if self._ledger.is_down:
            ledger = "unreachable"
        return {"ledger": ledger, "postgres": postgres, "workflows": workflows, **timekeepers}

    async def _check_timekeeper(self) -> dict[str, str]:
        """Return the state of the timekeeper, and of each check that the timekeeper makes."""
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                told = await self._ask_timekeeper()
        except Exception as error:  # the edge to another process: the error is the answer
            state = f"unreachable: {type(error).__name__}"
            return dict.fromkeys(("timekeeper", "books", "audit"), state)
        problems = {name: f"unhealthy: {one}" for name, one in told["problems"].items() if one}
        return {"timekeeper": _HEALTHY, **dict.fromkeys(told["problems"], _HEALTHY), **problems}


def _unexpected(code: ErrorCode, stored: StoredWorkflow, expected: str) -> ServiceError:
    return ServiceError(code, f"the workflow is {stored.status}, expected one {expected}")


async def _check_call(call: Awaitable[Any]) -> str:
    try:
        async with asyncio.timeout(PING_TIMEOUT_S):
            await call
    except Exception as error:  # the edge to another process: the error is the answer
        return f"unreachable: {type(error).__name__}"
    return _HEALTHY
