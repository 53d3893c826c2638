"""A Serve replica's access to the actors: publishes, cancels, ledger commands, waiting.

The gateway chooses among live owners by rendezvous hash. A request whose outcome is unknown, after
an owner's end, is retried with the same key until the caller's deadline. Waiting for a workflow
costs one long poll per owner, not one call per workflow. design.md section 3; contract.md section 6
(`Prefer: wait`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from actors.cluster.names import LEDGER, TIMEKEEPER, pooled_owner
from actors.cluster.runtime import ensure_runtime, ensure_timekeeper
from actors.dispatch.large_results import Blobs
from actors.process.bulk_window import request_all
from actors.process.cached_answer import CachedAnswer
from actors.process.foreground import Foreground
from actors.transport.actor_calls import BatchCall, actor_call, is_unknown_outcome
from actors.transport.channel import Channel
from actors.transport.late_replies import LatePoll
from actors.transport.ledger_client import LedgerClient, ledger_unavailable_error
from actors.transport.messages import (
    CALL_BYTES_MAX,
    CancelReply,
    CancelRequest,
    Late,
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
from actors.transport.record_bound import bound_results
from actors.transport.wire import REQUESTS, decode_reply
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.workflow.transitions import is_terminal
from ledger.blobs import BlobStore
from ledger.commands import Command, Outcome
from ledger.reads.reader import LedgerReader, StoredWorkflow
from ledger.reads.stored import RowDict, WorkflowHead
from ledger.workflows.endings import have_ended
from ledger.workflows.result_reads import dispatched_nodes, workflow_rows
from ledger.workflows.workflow_heads import workflow_heads
from ledger.workflows.workflow_records import workflow_records

log = logging.getLogger("callboard.gateway")

REQUEST_TIMEOUT_S = 15.0
RETRY_DELAY_S = 0.1
# The longest delay between two tries of which each reads the workflow's row.
READ_DELAY_S_MAX = 1.0
OWNERS_REFRESH_S = 1.0
# Interval at which a waiting request reads the row, which covers a lost notice.
WAIT_POLL_S = 3.0
PING_TIMEOUT_S = 2.0
# An owner that says nothing for that long is replaced meanwhile, and reads everything as it starts.
REFRESH_TIMEOUT_S = 10.0
# Of records their bytes bound a batch too, by the largest of one record.
RECORDS_BATCH = 32
ENDINGS_BATCH = 1_000
# Requests of a replica that may wait for an owner to know what they have stored.
REFRESHES_MAX = 100_000
# A larger request uses the bulk channel.
LARGE_BYTES = 16 * 1024
# Of one bulk, in flight to the owners: other bulks wait for two calls, not for the whole bulk.
BULK_BYTES_IN_FLIGHT_MAX = 2 * CALL_BYTES_MAX


class _Asked(NamedTuple):
    """A request, the live owner that gets it, if there is one, and in whose turn it is sent.

    `payer`: "" for the service's own.
    """

    request: OwnerRequest | PackedPublish
    owner: str | None
    payer: str


class _OwnerChannels:
    """The channels to one owner: for single requests, for bulks and large requests, for refreshes.

    A call is answered when all of its requests are committed, so requests that are slow to store or
    to read do not share a call with fast ones.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        self._single = _owner_channel(name, settings, "handle")
        self._bulk = _owner_channel(name, settings, "handle_bulk")
        self._late = LatePoll(BatchCall(settings.run_folder, name, "late"))
        refresh = BatchCall(settings.run_folder, name, "refresh")
        # Who asks during a call shares the next one.
        self._refreshes: Channel[None, None] = Channel(
            f"owner {name}, refreshes",
            refresh,
            capacity=REFRESHES_MAX,
            batch_size=REFRESHES_MAX,
            on_close=refresh.close,
        )

    async def request(self, request: OwnerRequest | PackedPublish, payer: str = "") -> OwnerAnswer:
        """Return the owner's answer. Raises the `ServiceError` that it answers with."""
        if isinstance(request, PackedPublish):
            reply = decode_reply(await self._bulk.request(request.body, payer))
        else:
            body = REQUESTS.encode(request)
            lane = self._bulk if len(body) > LARGE_BYTES else self._single
            reply = decode_reply(await lane.request(body, payer))
            if isinstance(reply, Late):
                reply = await self._late.reply(reply)
        if isinstance(reply, ServiceError):
            raise reply
        return reply

    async def refresh(self) -> None:
        await self._refreshes.request(None)

    def close(self) -> None:
        self._single.close()
        self._bulk.close()
        self._refreshes.close()
        self._late.close()


def _owner_channel(name: str, settings: Settings, method: str) -> Channel[bytes, bytes]:
    call = BatchCall(settings.run_folder, name, method)
    return Channel(
        f"owner {name}",
        call,
        capacity=settings.replica_requests_max + settings.bulk_items_max,
        batch_size=settings.batch_commands_max,
        weight_of=len,
        batch_weight=CALL_BYTES_MAX,
        on_close=call.close,
    )


class Gateway:
    """One per replica, created by `connect`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.reader = LedgerReader(settings.database_url, pool_size=settings.reader_pool_size)
        self.watcher = os.urandom(8).hex()
        self.foreground = Foreground()
        self._blob_store = BlobStore(settings.database_url, self.reader)
        self.blobs = Blobs(self._blob_store, cache_bytes_max=settings.blob_cache_bytes_max)
        self._ledger = LedgerClient(
            BatchCall(settings.run_folder, LEDGER, "submit"),
            is_unknown_outcome,
            capacity=settings.ledger_queue_max,
            batch_size=settings.batch_commands_max,
        )
        self._timekeeper_owners = actor_call(TIMEKEEPER, "owners")
        self._owners: dict[str, _OwnerChannels] = {}
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._finished: dict[str, None] = {}
        self._heads: Channel[tuple[str, str], WorkflowHead | None] = Channel(
            "workflow heads",
            partial(workflow_heads, self.reader),
            capacity=settings.replica_requests_max,
            batch_size=RECORDS_BATCH,
        )
        self._records: Channel[tuple[str, int], StoredWorkflow | None] = Channel(
            "workflow records",
            self._read_records,
            capacity=settings.replica_requests_max,
            batch_size=RECORDS_BATCH,
            weight_of=lambda asked: min(asked[1], settings.record_bytes_max),
            batch_weight=settings.record_bytes_max,
        )
        self._dispatched: Channel[tuple[str, str], RowDict | None] = Channel(
            "dispatched nodes",
            partial(dispatched_nodes, self.reader),
            capacity=settings.replica_requests_max,
            batch_size=ENDINGS_BATCH,
        )
        self._rows: Channel[str, RowDict | None] = Channel(
            "workflow rows",
            partial(workflow_rows, self.reader),
            capacity=settings.replica_requests_max,
            batch_size=RECORDS_BATCH,
        )
        self._endings: Channel[str, bool] = Channel(
            "ends of workflows",
            partial(have_ended, self.reader),
            capacity=settings.replica_requests_max,
            batch_size=ENDINGS_BATCH,
        )
        self._health = CachedAnswer(
            self._check_components, age_max_s=settings.health_cache_ms / 1_000
        )
        self._refresh: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, settings: Settings) -> Gateway:
        """Make sure that the actors run, and keep the list of live owners fresh."""
        await asyncio.to_thread(ensure_runtime, settings)
        gateway = cls(settings)
        gateway._refresh = asyncio.create_task(gateway._follow_owners())
        return gateway

    async def close(self) -> None:
        """End every task and connection."""
        for task in [self._refresh, *self._polls.values()]:
            if task is not None:
                task.cancel()
        await self._blob_store.close()
        await self.reader.close()

    # -- requests ---------------------------------------------------------------------------------

    async def publish(self, request: PublishRequest | PackedPublish) -> PublishReply:
        """Store and start a workflow; return after its commit.

        Raises:
            ServiceError: refused, or LEDGER_UNAVAILABLE when the outcome is not known in time.
        """
        with self.foreground:
            return await self._publish(request)

    async def _publish(self, request: PublishRequest | PackedPublish) -> PublishReply:
        async def asked() -> _Asked:
            return _Asked(request, self._choose(request.workflow_id), request.payer_did)

        reply = await self._request_owner(asked, time.monotonic() + REQUEST_TIMEOUT_S)
        assert isinstance(reply, PublishReply)
        return reply

    async def publish_bulk(
        self, requests: Sequence[PackedPublish]
    ) -> list[PublishReply | ServiceError]:
        """Publish many workflows; return a reply for each, in order."""
        replies = await request_all(
            self._publish,
            requests,
            weight_of=lambda request: len(request.body),
            weight_max=BULK_BYTES_IN_FLIGHT_MAX,
            foreground=self.foreground,
        )
        answers: list[PublishReply | ServiceError] = []
        for reply in replies:
            if not isinstance(reply, PublishReply | ServiceError):
                raise reply
            answers.append(reply)
        return answers

    async def cancel(self, request: CancelRequest, stored: StoredWorkflow) -> CancelReply:
        """Cancel a workflow at its owner; returns after the commit.

        Args:
            stored: the workflow as its caller has just read it.

        Raises:
            ServiceError: NOT_CANCELLABLE when it has ended.
        """

        def asked(now: StoredWorkflow) -> _Asked:
            if is_terminal(now.status):
                raise _unexpected(ErrorCode.NOT_CANCELLABLE, now, "that has not ended")
            return _Asked(request, now.owner, request.actor_did)

        reply = await self._request_driver(request.workflow_id, asked, stored)
        assert isinstance(reply, CancelReply)
        return reply

    async def resume(self, request: ResumeRequest, stored: StoredWorkflow) -> ResumeReply:
        """Let a quarantined workflow be driven on by its owner; returns after the commit.

        Args:
            stored: the workflow as its caller has just read it.

        Raises:
            ServiceError: CONFLICT when it is not quarantined.
        """

        def asked(now: StoredWorkflow) -> _Asked:
            if is_terminal(now.status) or now.row["quarantined_ms"] is None:
                raise _unexpected(ErrorCode.CONFLICT, now, "that is quarantined")
            return _Asked(request, now.owner, request.actor_did)

        reply = await self._request_driver(request.workflow_id, asked, stored)
        assert isinstance(reply, ResumeReply)
        return reply

    async def node_result(self, request: NodeResultRequest) -> NodeResultReply:
        """Hand a result to the owner of its workflow; return after the commit.

        Raises:
            ServiceError: ALREADY_SETTLED or ESCROW_RELEASED for a result that came too late.
        """

        def asked(now: StoredWorkflow) -> _Asked:
            late = replace(request, is_late=is_terminal(now.status))
            return _Asked(late, now.owner, now.payer_did)

        reply = await self._request_driver(request.workflow_id, asked)
        assert isinstance(reply, NodeResultReply)
        return reply

    async def commit(self, command: Command) -> Outcome:
        """Commit one ledger command.

        Raises:
            ServiceError: the ledger refused it, or cannot be reached.
        """
        with self.foreground:
            outcome = await self._ledger.commit(command, timeout_s=REQUEST_TIMEOUT_S)
        if outcome.error is not None:
            raise ServiceError(outcome.error, outcome.detail)
        return outcome

    async def refresh_owners(self) -> None:
        """Refresh every owner's directory after a change of agents, health, prices or stakes.

        So a client that registers an agent and publishes at once finds it, although the notice may
        not have arrived. An owner that does not answer reads the change at its next poll.
        """
        asked = [channels.refresh() for channels in self._owners.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_TIMEOUT_S):
                await asyncio.gather(*asked, return_exceptions=True)

    async def commit_many(self, commands: Sequence[Command]) -> list[Outcome]:
        """Commit several commands as one batch; refusals are outcomes."""
        return list(
            await asyncio.gather(
                *(self._ledger.commit(c, timeout_s=REQUEST_TIMEOUT_S) for c in commands)
            )
        )

    # -- waiting ----------------------------------------------------------------------------------

    async def wait_finished(self, workflow_id: str, timeout_s: float, *, watched: bool) -> bool:
        """Wait until a workflow has finished; False after the timeout.

        Args:
            timeout_s: 0 or more.
            watched: whether the workflow was published with this gateway as its watcher.
        """
        if workflow_id in self._finished:
            del self._finished[workflow_id]
            return True
        deadline = time.monotonic() + timeout_s
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(workflow_id, set()).add(future)
        try:
            if not watched and not await self._watch(workflow_id, deadline):
                return True
            while True:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                await asyncio.wait((future,), timeout=min(left_s, WAIT_POLL_S))
                if future.done() or await self._endings.request(workflow_id):
                    return True
        finally:
            waiting = self._waiting.get(workflow_id)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    del self._waiting[workflow_id]

    async def workflow_head(self, workflow_id: str, caller_did: str) -> WorkflowHead | None:
        """Return what decides whether a caller may see a workflow, None for an unknown one.

        Args:
            caller_did: whose turn it takes; "" for the service itself.
        """
        return await self._heads.request((workflow_id, caller_did), caller_did)

    async def workflow_record(
        self, workflow_id: str, caller_did: str, record_bytes: int | None = None
    ) -> StoredWorkflow | None:
        """Return a workflow's rows; reads of many requests travel as one query.

        Args:
            caller_did: whose turn it takes: a caller's many records do not stand before another's.
            record_bytes: those of its head, or more; None: it is looked up.
        """
        if record_bytes is None:
            head = await self.workflow_head(workflow_id, caller_did)
            if head is None:
                return None
            record_bytes = head.record_bytes
        return await self._records.request((workflow_id, record_bytes), caller_did)

    async def _read_records(self, asked: list[tuple[str, int]]) -> list[StoredWorkflow | None]:
        ids = [workflow_id for workflow_id, _ in asked]
        return await workflow_records(self.reader, ids, bytes_max=self.settings.record_bytes_max)

    async def dispatched_node(self, workflow_id: str, name: str) -> RowDict | None:
        """Return the columns that the result tokens of a node derive from, None if unknown.

        Args:
            workflow_id: in its usual spelling.
        """
        return await self._dispatched.request((workflow_id, name))

    async def workflow_row(self, workflow_id: str) -> RowDict | None:
        """Return a workflow's id, status and manifest alone, None for an unknown one.

        Args:
            workflow_id: in its usual spelling.
        """
        return await self._rows.request(workflow_id)

    async def load_results(self, stored: StoredWorkflow) -> None:
        """Put the texts of large results into their rows, up to the bound of the record.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        refs = bound_results(stored, self.settings.record_bytes_max)
        texts = await self.blobs.texts([ref for _, ref in refs]) if refs else {}
        for node, ref in refs:
            node["result_json"] = texts[ref.hash].decode()

    async def _watch(self, workflow_id: str, deadline: float) -> bool:
        """Register as a watcher at the owner; False when the workflow has ended.

        While no owner drives the workflow, its row is read for its end.
        """
        request = WatchRequest(workflow_id=workflow_id, watcher=self.watcher)

        def asked(now: StoredWorkflow) -> _Asked | None:
            return None if is_terminal(now.status) else _Asked(request, now.owner, "")

        try:
            return await self._request_driver(workflow_id, asked, deadline=deadline) is not None
        except ServiceError as error:
            log.info("not watched workflow=%s error=%s", workflow_id, error)
            return True

    async def _poll(self, name: str) -> None:
        """Long-poll one owner for the watched workflows that have finished."""
        with contextlib.closing(BatchCall(self.settings.run_folder, name, "finished")) as call:
            while True:
                try:
                    finished = await call(self.watcher)
                except Exception as error:  # the edge to another process; waiters poll the rows
                    log.info("poll failed owner=%s error=%s", name, type(error).__name__)
                    await asyncio.sleep(RETRY_DELAY_S)
                    continue
                for workflow_id in finished:
                    self._notify_waiters(workflow_id)

    def _notify_waiters(self, workflow_id: str) -> None:
        futures = self._waiting.get(workflow_id)
        if futures is None:
            # The notice arrived before the reply to the publish: kept for a moment.
            self._finished[workflow_id] = None
            while len(self._finished) > self.settings.replica_requests_max:
                del self._finished[next(iter(self._finished))]
            return
        for future in futures:
            if not future.done():
                future.set_result(None)

    # -- owners -----------------------------------------------------------------------------------

    async def _request_driver(
        self,
        workflow_id: str,
        asked: Callable[[StoredWorkflow], _Asked | None],
        stored: StoredWorkflow | None = None,
        *,
        deadline: float | None = None,
    ) -> OwnerAnswer:
        """Ask the owner that drives a workflow; by its row, which is read again before each try.

        Args:
            asked: what is asked of a workflow that stands so, and of which owner; None: nothing.
            stored: the workflow as it was just read; None: it is read.
            deadline: of `time.monotonic()`; None: that of a request.

        Raises:
            ServiceError: as `_request_owner`; NOT_FOUND without such a workflow; what `asked`
                raises.
        """

        async def asked_now() -> _Asked | None:
            nonlocal stored
            now, stored = stored, None
            if now is None:
                head = await self.workflow_head(workflow_id, "")
                if head is None:
                    raise ServiceError(ErrorCode.NOT_FOUND, f"there is no workflow {workflow_id}")
                now = head.workflow
            question = asked(now)
            if question is None or question.owner is None:
                return question
            # Until another owner takes a lost one's workflow over, any of them says that it does
            # not drive it.
            home = pooled_owner(question.owner)
            owner = home if home in self._owners else self._choose(workflow_id)
            return question._replace(owner=owner)

        if deadline is None:
            deadline = time.monotonic() + REQUEST_TIMEOUT_S
        return await self._request_owner(asked_now, deadline, READ_DELAY_S_MAX)

    async def _request_owner(
        self,
        asked: Callable[[], Awaitable[_Asked | None]],
        deadline: float,
        delay_s_max: float = RETRY_DELAY_S,
    ) -> OwnerAnswer:
        """Ask an owner until an outcome is known or the deadline has passed.

        Args:
            asked: called before each try; returns what is asked of which owner. None: nothing is.
            deadline: of `time.monotonic()`.
            delay_s_max: the longest delay between two tries.

        Raises:
            ServiceError: the owner's refusal; its last `NotYet`, or LEDGER_UNAVAILABLE, when the
                deadline has passed.
        """
        refusal = ledger_unavailable_error()
        delay_s = RETRY_DELAY_S
        while True:
            question = await asked()
            if question is None:
                return None
            if question.owner is not None:
                owner = self._owners[question.owner]
                try:
                    async with asyncio.timeout(max(0.01, deadline - time.monotonic())):
                        reply = await owner.request(question.request, question.payer)
                    if reply is not None:
                        return reply
                except NotYet as error:
                    refusal = error
                except ServiceError:
                    raise
                except Exception as error:  # the edge to another process
                    if not (is_unknown_outcome(error) or isinstance(error, TimeoutError)):
                        raise
            if time.monotonic() + delay_s >= deadline:
                raise refusal
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, delay_s_max)

    def _choose(self, key: str) -> str | None:
        """Return the live owner with the highest hash for the key (rendezvous hashing)."""
        if len(self._owners) <= 1:
            return next(iter(self._owners), None)
        return max(
            self._owners,
            key=lambda name: hashlib.blake2b(f"{name}|{key}".encode(), digest_size=8).digest(),
        )

    async def _follow_owners(self) -> None:
        while True:
            try:
                await self._follow_once()
            except Exception as error:  # the edge to another process; the old list stays in use
                log.info("timekeeper did not answer error=%s", type(error).__name__)
            await asyncio.sleep(OWNERS_REFRESH_S if self._owners else RETRY_DELAY_S)

    async def _follow_once(self) -> None:
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                owners = await self._timekeeper_owners()
            self._set_owners(owners)
        except Exception as error:  # the edge to another process
            if is_unknown_outcome(error):
                # It has ended and Ray restarts it, or it died for good and this call creates one.
                await asyncio.to_thread(ensure_timekeeper, self.settings)
            raise

    def _set_owners(self, names: Sequence[str]) -> None:
        for name in set(self._owners) - set(names):
            self._owners.pop(name).close()
            self._polls.pop(name).cancel()
        for name in set(names) - set(self._owners):
            self._owners[name] = _OwnerChannels(name, self.settings)
            self._polls[name] = asyncio.create_task(self._poll(name))

    # -- health -----------------------------------------------------------------------------------

    async def components(self) -> dict[str, str]:
        """Return `healthy`, or the defect, of ledger, postgres, workflows and timekeeper.

        Cached for `health_cache_ms`; concurrent callers share one check.
        """
        return await self._health.get()

    async def _check_components(self) -> dict[str, str]:
        ledger, postgres, timekeeper = await asyncio.gather(
            _check_call(actor_call(LEDGER, "ping")()),
            _check_call(self.reader.ping()),
            _check_call(actor_call(TIMEKEEPER, "ping")()),
        )
        workflows = "healthy" if self._owners else "no workflow owner is ready"
        if self._ledger.is_down:
            ledger = "unreachable"
        return {
            "ledger": ledger,
            "postgres": postgres,
            "workflows": workflows,
            "timekeeper": timekeeper,
        }


def _unexpected(code: ErrorCode, stored: StoredWorkflow, expected: str) -> ServiceError:
    return ServiceError(code, f"the workflow is {stored.status}, expected one {expected}")


async def _check_call(call: Awaitable[Any]) -> str:
    try:
        async with asyncio.timeout(PING_TIMEOUT_S):
            await call
    except Exception as error:  # the edge to another process: the error is the answer
        return f"unreachable: {type(error).__name__}"
    return "healthy"
