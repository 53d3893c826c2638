"""A Serve replica's access to the actors: publishes, cancels, ledger commands, waiting, health.

What is asked about a workflow goes to the owner that holds its shard. The workflow's row is read
before each further try, because one that has ended is driven by none.
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
from actors.gateway.ends import Ended, Ends
from actors.gateway.timekeeper_watch import TimekeeperWatch
from actors.gateway.workflow_reads import RECORD_BYTES_MAX, WorkflowReads
from actors.process.cached_answer import CachedAnswer
from actors.routing.live_owners import LiveOwners, Tries
from actors.routing.publishes import PUBLISH_TIMEOUT_S, publish_all, publish_once
from actors.routing.shard_map import ShardMap
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

# Age up to which a state of health is told.
HEALTH_AGE_MAX_S: Final = 0.5

log = logging.getLogger("callboard.gateway")

REQUEST_TIMEOUT_S = 15.0
PING_TIMEOUT_S = 2.0
_HEALTHY = "healthy"
# The longest delay between two tries of which each reads the workflow's row.
READ_DELAY_S_MAX = 1.0
# Interval at which a waiting request reads the row, which covers a lost notice.
WAIT_POLL_S = 3.0


class Question(NamedTuple):
    """A request and in whose turn it is sent; `payer`: "" for the service's own."""

    request: OwnerRequest
    payer: str


class Gateway:
    """One per replica, created by `connect`.

    Args:
        settings: the deployment's.
        machine: Ray's id of this replica's machine.
        on_map: receives each map of shards.
    """

    def __init__(
        self,
        settings: Settings,
        machine: str = "",
        on_map: Callable[[ShardMap], None] = lambda _: None,
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
        self._ends = Ends(settings.replica_requests_max)
        self._renew = self._route.renewals()
        self.owners = LiveOwners(
            settings,
            self._ends.tell,
            self._renew,
            machine=machine,
            on_map=on_map,
            on_moved=self._watch_moved,
        )
        self._rewatches: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        # What this replica has counted, for `/metrics`.
        self.counters: Counter[Key] = Counter()
        self._ask_ledgers = {name: ActorCall(name, "ping") for name in LEDGERS}
        self._ask_timekeeper = ActorCall(TIMEKEEPER, "ping")
        self._health = CachedAnswer(self._check_components, age_max_s=HEALTH_AGE_MAX_S)
        self._readiness = CachedAnswer(self._check_postgres, age_max_s=HEALTH_AGE_MAX_S)

    @classmethod
    async def connect(
        cls, settings: Settings, on_map: Callable[[ShardMap], None] = lambda _: None
    ) -> Gateway:
        """Make sure that the actors run, and keep the map of their shards fresh."""
        await asyncio.to_thread(ensure_runtime, settings)
        gateway = cls(settings, this_machine(), on_map)
        gateway.owners.follow()
        watch = TimekeeperWatch(settings, gateway._report)
        gateway._watching = asyncio.create_task(watch.run())
        return gateway

    async def close(self) -> None:
        """End every task and connection."""
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
            ServiceError: refused, or LEDGER_UNAVAILABLE when the outcome is not known in time.
        """
        return await publish_once(self.owners, request, PUBLISH_TIMEOUT_S)

    async def publish_bulk(
        self, requests: Sequence[PackedPublish]
    ) -> list[PublishReply | ServiceError]:
        """Publish many workflows; return a reply for each, in order."""
        return await publish_all(self.owners, requests)

    async def cancel(self, request: CancelRequest, stored: StoredWorkflow) -> CancelReply:
        """Cancel a workflow at its owner; returns after the commit.

        Args:
            stored: the workflow as its caller has just read it.

        Raises:
            ServiceError: NOT_CANCELLABLE when it has ended.
        """

        def asked(now: StoredWorkflow) -> Question:
            if is_terminal(now.status):
                raise _unexpected(ErrorCode.NOT_CANCELLABLE, now, "that has not ended")
            return Question(request, request.actor_did)

        reply = await self._request_driver(request.workflow_id, asked, asked(stored))
        assert isinstance(reply, CancelReply)
        return reply

    async def resume(self, request: ResumeRequest, stored: StoredWorkflow) -> ResumeReply:
        """Let a quarantined workflow be driven on by its owner; returns after the commit.

        Args:
            stored: the workflow as its caller has just read it.

        Raises:
            ServiceError: CONFLICT when it is not quarantined.
        """

        def asked(now: StoredWorkflow) -> Question:
            if is_terminal(now.status) or now.row["quarantined_ms"] is None:
                raise _unexpected(ErrorCode.CONFLICT, now, "that is quarantined")
            return Question(request, request.actor_did)

        reply = await self._request_driver(request.workflow_id, asked, asked(stored))
        assert isinstance(reply, ResumeReply)
        return reply

    async def node_result(self, request: NodeResultRequest) -> NodeResultReply:
        """Hand a result to the owner of its workflow; return after the commit.

        Raises:
            ServiceError: ALREADY_SETTLED or ESCROW_RELEASED for a result that came too late.
        """

        def asked(now: StoredWorkflow) -> Question:
            return Question(replace(request, is_late=is_terminal(now.status)), now.payer_did)

        reply = await self._request_driver(request.workflow_id, asked)
        assert isinstance(reply, NodeResultReply)
        return reply

    async def commit(self, command: Command) -> Outcome:
        """Commit one ledger command.

        Raises:
            ServiceError: the ledger refused it, or cannot be reached.
        """
        outcome = await self._ledger.commit(command, timeout_s=REQUEST_TIMEOUT_S)
        if outcome.error is not None:
            raise ServiceError(outcome.error, outcome.detail)
        return outcome

    async def read_cluster(self) -> Lease:
        """Return the members and shards as the ledger knows them now.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE while it does not answer.
        """
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                return await self._renew(Renewal(member=""))
        except (
            Exception
        ) as error:  # the edge to another process: whatever it is, it does not answer
            raise ledger_unavailable_error() from error

    async def commit_many(self, commands: Sequence[Command]) -> list[Outcome]:
        """Commit several commands as one batch; refusals are outcomes."""
        return list(
            await asyncio.gather(
                *(self._ledger.commit(c, timeout_s=REQUEST_TIMEOUT_S) for c in commands)
            )
        )

    async def _request_driver(
        self,
        workflow_id: str,
        asked: Callable[[StoredWorkflow], Question | None],
        question: Question | None = None,
        *,
        deadline: float | None = None,
    ) -> OwnerAnswer:
        """Ask the owner that holds a workflow's shard; its row is read before each further try.

        Args:
            asked: what is asked of a workflow that stands so; None: nothing.
            question: what is asked first, without a read; None: it is read.
            deadline: of `time.monotonic()`; None: that of a request.

        Raises:
            ServiceError: the owner's refusal; its last `NotYet`, or LEDGER_UNAVAILABLE, when the
                deadline has passed; NOT_FOUND without such a workflow; what `asked` raises.
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
            if is_read:  # else its row tells why it is not driven: it has ended, as a rule
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
        """Wait until a workflow has finished; None after the timeout.

        Args:
            timeout_s: 0 or more.
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
        """Register as a watcher at the owner; False when the workflow has ended.

        While no owner drives the workflow, its row is read for its end.
        """
        watch = Question(WatchRequest(workflow_id=workflow_id, watcher=self.owners.watcher), "")

        def asked(now: StoredWorkflow) -> Question | None:
            return None if is_terminal(now.status) else watch

        try:
            reply = await self._request_driver(workflow_id, asked, watch, deadline=deadline)
            return reply is not None
        except ServiceError as error:
            log.info("not watched workflow=%s error=%s", workflow_id, error)
            return True

    def _watch_moved(self, shards: Collection[int]) -> None:
        """Watch what is waited for in these shards again: their holders may not know who waits.

        A holder that was given its shard has heard it from the one before; after a crash it has
        not.
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
            ServiceError: OVERLOADED; it does not answer in time.
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

        Cached for `HEALTH_AGE_MAX_S`; concurrent callers share one check.
        """
        return await self._health.get()

    async def is_ready(self) -> bool:
        """Say whether this replica can serve: no other process is waited for but Postgres.

        While a machine is lost the calls of `components` are late, on every other machine, too.
        Cached as that.
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
        """Return the state of the timekeeper, and of what it watches."""
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
