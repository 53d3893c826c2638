"""A workflow owner: builds and connects the parts of one `WorkflowActor`, without Ray.

Each owner process is a new member of the cluster. The owner loads the directory and joins the
cluster. From then on it takes and gives shards (`actors/shards/membership.py`). After it has taken
a shard, it restores the shard's unfinished workflows in the background. The first start, a restart
and the loss of another machine all take this path. Work on many workflows runs in slices, so that
no turn of the event loop takes long.
Decisions fairness-and-long-work and workflow-owners-and-shards.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Sequence,
)
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from actors.directory.directory_sync import DirectorySync
from actors.directory.health.circuits import Opened
from actors.directory.peer_directory import PeerDirectory
from actors.dispatch.dispatcher import Dispatcher
from actors.dispatch.large_results import BLOB_CACHE_BYTES_MAX, Blobs
from actors.dispatch.remote_dispatch import OwnerCalls, RemoteDispatch
from actors.engine.node_results import find_order_to_judge, take_result
from actors.engine.outbox import Outboxes
from actors.engine.restorer import Restorer, read_until_success
from actors.engine.runner import Runner
from actors.ports import Contact, DispatchOrder
from actors.process.at_work import AtWork
from actors.process.loop_clock import LoopClock
from actors.process.slices import Slices, run_in_slices
from actors.shards.child_lease import ChildLease, Parentage
from actors.shards.held_shards import HeldShards
from actors.shards.membership import Membership
from actors.shards.shard_ledger import ShardLedger
from actors.transport.late_replies import LateReplies
from actors.transport.ledger_client import LedgerClient, ledger_unavailable_error
from actors.transport.messages import (
    CancelRequest,
    Moved,
    NodeResultRequest,
    OwnerReply,
    OwnerRequest,
    PublishRequest,
    ResumeRequest,
    WatchReply,
    WatchRequest,
)
from actors.values.agent_schemas import AgentSchemas
from actors.workflows.step_commands import moved_error, rereading_error
from core.errors import ErrorCode, ServiceError
from core.market.reputation import LATENCY_MS_MAX
from core.metric_families import Key, Report
from core.settings import Settings
from core.shards.agent_shares import AgentShares
from core.shards.lease_messages import Lease, MemberState, MemberView, Renewal
from federation.name_resolver import NameResolver
from ledger.blobs import BlobStore
from ledger.code_version import CODE_VERSION
from ledger.commands import Command, Outcome
from ledger.features.directory import DirectoryTail
from ledger.features.own_state import RequestSigner
from ledger.features.peers import PeerReader, read_peer_dids
from ledger.features.shards import JoinCluster
from ledger.features.unfinished import UnfinishedPages
from ledger.merged_runs import MergedRuns
from ledger.reads.reader import LedgerReader

log = logging.getLogger("callboard.owner")

# Maximum time that a caller waits for a commit. Then the reply says that the outcome is unknown.
COMMIT_TIMEOUT_S = 10.0
# Maximum number of open circuits in one ping reply. The timekeeper probes the listed agents. When
# these agents recover, later ping replies list other agents.
OPEN_CIRCUITS_REPORTED_MAX = 100


def new_member(address: str) -> str:
    """Return a new, unique member id for a process at an address."""
    return f"{address}~{os.urandom(4).hex()}"


def address_of(member: str) -> str:
    """Return the address that a member id contains."""
    return member.rpartition("~")[0]


def boot_ms() -> int:
    """Return a monotonic time that also advances while the machine or the process is suspended."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Children(Protocol):
    """The owner's child processes; each child drives one workflow (`isolation: dedicated`)."""

    def drives(self, workflow_id: str) -> bool:
        """Say whether a workflow has a child process that may still run."""

    def drop(self, shards: Collection[int]) -> None:
        """End the child processes of these shards, whose workflows another member drives now."""

    def works_in(self, shard: int) -> bool:
        """Say whether a workflow of this shard has a child process."""


class Owner:
    """One owner of workflows: runner, restorer, directory with its sync, dispatcher, membership.

    Implements `ShardWork`.

    Args:
        address: the name of the Ray actor; a restarted process has the same address.
        machine: Ray's id of the machine.
        settings: the settings of the deployment.
        ledger: the client of the ledger actor.
        renew: sends a lease renewal to the ledger actor.
        owner_calls: returns the client for another owner process, by the address of that process.
        on_lost: receives a reason and ends this process; the next process starts from the rows.
        at_work: records the current workflow, and counts the process ends that a workflow caused.
        parent: of a child process: the member, shard and epoch under which the child drives one
            workflow. None: this process joins the cluster as a member.
    """

    def __init__(
        self,
        address: str,
        machine: str,
        settings: Settings,
        *,
        ledger: LedgerClient,
        renew: Callable[[Renewal], Awaitable[Lease]],
        owner_calls: Callable[[str], OwnerCalls],
        on_lost: Callable[[str], None],
        at_work: AtWork,
        parent: Parentage | None = None,
    ) -> None:
        self._at_work = at_work
        self._address = address
        self._machine = machine
        self._settings = settings
        self._ledger = ledger
        self._peer_calls = owner_calls
        self.children: Children | None = None
        self.held = HeldShards(new_member(address) if parent is None else parent.member)
        self.membership = self._build_lease(parent, renew, on_lost)
        self._clock = LoopClock()
        self._reader = LedgerReader(settings.database_url, pool_size=_pool_size(settings, parent))
        self._blob_store = BlobStore(settings.database_url, self._reader)
        self._schemas = AgentSchemas(self._read_card)
        self._directory = _build_directory(settings, self._schemas)
        self._peer_reader = PeerReader(self._reader)
        self._revoked_work = MergedRuns("work of revoked agents", self._end_revoked_work)
        self._directory_sync = DirectorySync(
            self._directory,
            tail=DirectoryTail(settings.database_url),
            owner=address,
            on_revoked=self._revoked_work.soon,
            now_ms=self._clock.now_ms,
            read_peers=self._read_peers,
        )
        # An owner's name is its member id. A child process has a name of its own.
        name = self.held.member if parent is None else parent.child
        self._shares = AgentShares(name, self._concurrency)
        self._dispatcher = Dispatcher(
            settings,
            self._clock,
            begin=self._directory.begin,
            note=self._note_outcome,
            names=NameResolver(),
            concurrency_of=self._shares.own,
            at_work=self._at_work,
            blobs=Blobs(self._blob_store, cache_bytes_max=BLOB_CACHE_BYTES_MAX),
            valid_keys=lambda did: self._directory.valid_keys(did, self._clock.now_ms()),
            may_send=self.may_send,
            schemas=self._schemas,
            signer=RequestSigner(self._reader, settings.deployment_keys),
        )
        self.remote_dispatch = RemoteDispatch(
            self._dispatcher,
            name,
            now_ms=self._clock.now_ms,
            is_always=settings.dispatch == "spread",
            shares=self._shares,
            may_send=self.may_send,
        )
        self.outboxes = Outboxes()
        self._runner: Runner | None = None
        self._restorer: Restorer | None = None
        self._shard_ledger = ShardLedger(ledger, self.membership.note_stale)
        self._tasks: set[asyncio.Task[None]] = set()
        # The addresses of other members by member id, and of child processes by child name.
        self._others, self._children = dict[str, str](), dict[str, str]()
        self._drops = 0  # drops of lost shards under way: orders of these may still be queued

    def _build_lease(
        self,
        parent: Parentage | None,
        renew: Callable[[Renewal], Awaitable[Lease]],
        on_lost: Callable[[str], None],
    ) -> Membership | ChildLease:
        if parent is None:
            return Membership(
                self.held,
                self,
                renew=renew,
                commit=self._commit,
                boot_ms=boot_ms,
                on_ended=on_lost,
                drain_ms=self._settings.shard_drain_ms,
            )
        self.held.add(parent.shard, parent.epoch)
        return ChildLease(parent, on_lost)

    # -- starting ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the directory; join the cluster or start as a child; start to restore shards."""
        started_ms = self._clock.now_ms()
        await read_until_success(self._directory_sync.start)
        self._runner = Runner(
            self.held,
            self._settings,
            ledger=self._shard_ledger,
            directory=self._directory,
            dispatcher=self.remote_dispatch,
            clock=self._clock,
            on_finished=self.outboxes.put,
            on_rows_needed=self.restore_one,
            at_work=self._at_work,
            on_answered=self.membership.note_answered,
        )
        self._restorer = Restorer(
            self._runner,
            self.held,
            lambda shards: UnfinishedPages(self._reader, shards),
            refresh=self._directory_sync.refresh,
            ledger=self._shard_ledger,
            is_skipped=self._is_childs,
        )
        member = self.held.member
        if isinstance(self.membership, Membership):
            join = JoinCluster(
                key=f"join:{member}",
                member=member,
                machine=self._machine,
                address=self._address,
                version=str(CODE_VERSION),
            )
            outcome = await self._commit(join)
            assert outcome.error is None, f"{join.key}: {outcome}"
            self.membership.note_moved(outcome)
        else:  # a child process: the parent sends all of its dispatches
            self._others = {member: address_of(member)}
            self._shares.set_owners([member])
            self._set_peers()
        self.membership.start()
        log.info("owner started member=%s ms=%d", member, self._clock.now_ms() - started_ms)

    async def _read_peers(self) -> None:
        dids = await read_peer_dids(self._reader)
        self._directory.put_peers(await self._peer_reader.read(), dids)

    def restore_one(self, workflow_id: str) -> None:
        """Start to restore a workflow from its rows, if this owner holds its shard."""
        assert self._restorer is not None, "an owner restores after it has started"
        self._restorer.restore_one(workflow_id)

    async def restore_now(self, workflow_id: str) -> None:
        """Restore a workflow from its rows, if this owner holds its shard; return when done."""
        assert self._restorer is not None, "an owner restores after it has started"
        await self._restorer.restore_ids([workflow_id])

    def _is_childs(self, workflow_id: str) -> bool:
        return self.children is not None and self.children.drives(workflow_id)

    @property
    def steps(self) -> int:
        """Return the number of submitted commands and restored workflows; safe in any thread."""
        runner, restorer = self._runner, self._restorer
        steps = 0 if runner is None else runner.statistics().commands
        return steps + (0 if restorer is None else restorer.count)

    async def close(self) -> None:
        """End every task and connection."""
        await self.membership.close()
        if self._restorer is not None:
            await self._restorer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # The restorer and the tasks call the directory sync, so they are ended first. The sync
        # starts `_revoked_work`, so this work is ended after the sync.
        await self._directory_sync.close()
        await self._revoked_work.close()
        await self._dispatcher.close()
        await self._blob_store.close()
        await self._reader.close()

    # -- requests ---------------------------------------------------------------------------------

    async def handle(
        self, batch: Sequence[OwnerRequest], late: LateReplies | None = None
    ) -> list[OwnerReply]:
        """Handle a batch of requests; return one reply per request, in the same order.

        If a request causes a command, its reply follows the commit of the command.

        Args:
            late: stores the replies that are not ready soon, and returns a `Late` token for each
                of them. None: wait for all replies, at most `COMMIT_TIMEOUT_S`.
        """
        runner = self._require_runner()
        try:
            self._ledger.raise_when_down()
        except ServiceError as error:
            return [error] * len(batch)
        loop = asyncio.get_running_loop()
        slices = Slices()
        replies: list[asyncio.Future[OwnerReply]] = []
        for request in batch:
            reply: asyncio.Future[OwnerReply] = loop.create_future()
            replies.append(reply)
            if isinstance(request, PublishRequest) and not self._directory_sync.is_known(request):
                self._begin(self._handle_when_known(runner, request, reply))
            else:
                self._handle_request(runner, request, reply)
            await slices.pause()
        if late is not None:
            return await late.settled(replies)
        await asyncio.wait(replies, timeout=COMMIT_TIMEOUT_S)
        return [reply.result() if reply.done() else ledger_unavailable_error() for reply in replies]

    async def refresh(self) -> None:
        """Read the agents, prices and stakes from the ledger; concurrent callers share one read.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE if the read fails.
        """
        await self._directory_sync.refresh()

    async def _handle_when_known(
        self, runner: Runner, request: PublishRequest, reply: asyncio.Future[OwnerReply]
    ) -> None:
        """Refresh the directory, then publish a workflow with an unknown agent or capability.

        Only this request waits for the refresh.
        """
        try:
            await self._directory_sync.refresh()
        except ServiceError as error:
            _build_settle(reply)(error)
            return
        except Exception:  # the edge of one request: the publish itself names what is missing
            log.exception("directory not refreshed workflow=%s", request.workflow_id)
        self._handle_request(runner, request, reply)

    def _handle_request(
        self, runner: Runner, request: OwnerRequest, reply: asyncio.Future[OwnerReply]
    ) -> None:
        """Start to handle one request; an error becomes the reply to this request alone."""
        settle = _build_settle(reply)
        try:
            if not self._is_held(request):
                settle(moved_error(request.workflow_id))
                return
            if self._request_missing_restore(runner, request):
                settle(rereading_error(request.workflow_id))
                return
            match request:
                case PublishRequest():
                    runner.publish(request, settle)
                case CancelRequest():
                    runner.cancel(request, settle)
                case ResumeRequest():
                    runner.resume(request, settle)
                case NodeResultRequest():
                    order = find_order_to_judge(runner, request)
                    if order is None:
                        take_result(runner, request, self._clock.now_ms(), settle)
                    else:
                        self._begin(self._judge_and_take(runner, order, request, reply))
                case WatchRequest():
                    is_held = runner.watch(request.workflow_id, request.watcher)
                    settle(WatchReply() if is_held else None)
        except ServiceError as error:  # the cost cannot be estimated, or a mapping cannot match
            settle(error)
        except Exception:  # the edge of one request: the rest of the batch still gets replies
            log.exception("request failed workflow=%s", request.workflow_id)
            settle(ServiceError(ErrorCode.INTERNAL_ERROR, "the request failed inside the service"))

    async def _judge_and_take(
        self,
        runner: Runner,
        order: DispatchOrder,
        request: NodeResultRequest,
        reply: asyncio.Future[OwnerReply],
    ) -> None:
        """Validate a submitted result against the agent's outputSchema, then take the result."""
        settle = _build_settle(reply)
        result = request.result_ref or request.result_json
        assert result is not None, "a result without a failure"
        try:
            failure = await self._dispatcher.checks.judge_result(order, result)
            judged = replace(request, failure=failure)
            take_result(runner, judged, self._clock.now_ms(), settle)
        except ServiceError as error:
            settle(error)
        except Exception:  # the edge of one request: the agent may submit the result again
            log.exception("result not judged workflow=%s", request.workflow_id)
            detail = "checking the result took too long or failed: submit it again"
            settle(ServiceError(ErrorCode.OVERLOADED, detail))

    async def _read_card(self, did: str) -> str | None:
        row = await self._reader.agent(did)
        return None if row is None else str(row["card"])

    def _is_held(self, request: OwnerRequest) -> bool:
        """Say whether this owner may handle a request: the workflow's shard is held and not frozen.

        A dry run belongs to no shard, so any owner may handle a dry run.
        """
        if isinstance(request, PublishRequest) and request.is_dry_run:
            return True
        workflow_id = request.workflow_id
        return self.held.is_held(workflow_id) and not self.held.is_frozen(workflow_id)

    def _request_missing_restore(self, runner: Runner, request: OwnerRequest) -> bool:
        """Request the restore of a workflow that may be unfinished but not restored yet.

        Returns:
            Whether the restore was requested; the caller must repeat its request then.
        """
        assert self._restorer is not None, "an owner answers after it has started"
        if isinstance(request, PublishRequest):
            return False
        if not self._restorer.is_restoring(request.workflow_id):
            return False
        if isinstance(request, NodeResultRequest) and request.is_late:
            return False
        if runner.is_driving(request.workflow_id) or runner.is_quarantined(request.workflow_id):
            return False
        self._restorer.restore_one(request.workflow_id)
        return True

    def statistics(self) -> dict[str, Any]:
        """Return the counters of all parts, for ping replies and metrics."""
        runner, circuits = self._runner, self._directory.open_circuits()
        return {
            "owner": self._address,
            "member": self.held.member,
            "shards": len(self.held),
            "clusterVersion": self.membership.cluster_version,
            "openCalls": self.open_calls(),
            "runner": runner.statistics() if runner is not None else None,
            "dispatch": self._dispatcher.statistics(),
            "ledger": self._ledger.queued,
            "isRestoring": self._restorer is None or self._restorer.is_scanning,
            "restored": 0 if self._restorer is None else self._restorer.count,
            "openCircuits": circuits[:OPEN_CIRCUITS_REPORTED_MAX],
            "report": Report(self.held.member, {}, self._gauges(len(circuits))),
        }

    def _gauges(self, circuits: int) -> dict[Key, float]:
        dispatch = self._dispatcher.statistics()
        return {
            ("callboard_processes", "owner"): 1,
            ("callboard_shards", "held"): len(self.held),
            ("callboard_dispatch_queued",): dispatch.queued,
            ("callboard_dispatch_in_flight",): dispatch.in_flight,
            ("callboard_dispatch_accepted",): dispatch.accepted,
            ("callboard_circuits_open",): circuits,
            ("callboard_owner_queued_commands",): self._ledger.queued,
        }

    # -- shards -----------------------------------------------------------------------------------

    def load(self) -> int:
        """Implement `ShardWork`."""
        return 0 if self._runner is None else self._runner.statistics().running

    def open_calls(self) -> int:
        """Implement `ShardWork`."""
        return self.remote_dispatch.open_calls

    def taken(self, shards: Sequence[int]) -> None:
        """Implement `ShardWork`."""
        assert self._restorer is not None, "a member holds shards after it has joined"
        self._restorer.restore_shards(shards)

    def lost(self, shards: Sequence[int]) -> None:
        """Implement `ShardWork`."""
        if self.children is not None:
            self.children.drop(shards)
        self._end_runs(shards, is_told=True)

    def _end_runs(self, shards: Sequence[int], *, is_told: bool) -> None:
        self._drops += 1
        steps = self._require_runner().shards.drop(set(shards), is_told=is_told)
        self._begin(self._drop(steps))

    async def _drop(self, steps: Iterable[object]) -> None:
        try:
            await run_in_slices(steps)
        finally:
            self._drops -= 1
            if self.may_send():
                self._dispatcher.resume()

    def may_send(self) -> bool:
        """Say whether this process may send new dispatches.

        It may not while orders of dropped shards are being ended: another member may have taken
        these shards and sent the same orders.
        """
        return self.membership.may_send() and not self._drops

    def may_give(self, shard: int) -> bool:
        """Implement `ShardWork`."""
        assert self._restorer is not None, "a member holds shards after it has joined"
        if self.children is not None and self.children.works_in(shard):
            return False  # a child process drives a workflow of it, under this member's epoch
        return not self._restorer.is_restoring_shard(shard)

    async def settled(self, shard: int) -> None:
        """Implement `ShardWork`."""
        await self._shard_ledger.settled(shard)

    def is_idle(self, shard: int) -> bool:
        """Implement `ShardWork`."""
        return self._require_runner().shards.is_idle(shard)

    def frozen(self, shard: int) -> None:
        """Implement `ShardWork`."""
        self._end_runs([shard], is_told=False)

    def unfenced(self) -> None:
        """Implement `ShardWork`."""
        self._dispatcher.resume()

    def members_changed(self, members: Sequence[MemberView]) -> None:
        """Implement `ShardWork`."""
        # A drained member calls no agents, so it gets no share of any agent's concurrency.
        live = {one.member: one for one in members if one.is_live and not one.is_drained}
        draining = [one.member for one in live.values() if one.state is MemberState.DRAINING]
        own, self._others = self.held.member, {one.member: one.address for one in live.values()}
        self._others.pop(own, None)
        has_changed = self._shares.set_owners(live, draining)
        self._set_peers()
        if has_changed:
            self._dispatcher.wake()

    def _set_peers(self) -> None:
        addresses = {**self._others, **self._children}
        self.remote_dispatch.set_members(
            {name: partial(self._peer_calls, address) for name, address in addresses.items()}
        )

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- agents -----------------------------------------------------------------------------------

    def _concurrency(self, did: str) -> int:
        """Return an agent's concurrency limit for all owners together."""
        entry = self._directory.entry(did)
        return self._settings.agent_concurrency if entry is None else entry.max_concurrency

    def child_began(self, child: str, slot: int) -> None:
        """Accept the dispatches of a child process from now on.

        Args:
            child: the name of the child process; no earlier process has had it.
            slot: the number of the child's slot, which is part of its address.
        """
        self._children[child] = f"{self._address}.{slot}"
        self._set_peers()

    def child_ended(self, child: str) -> None:
        """Accept no dispatches of a child process any more, and drop its unsent dispatches."""
        if self._children.pop(child, None) is not None:
            self._set_peers()

    def _note_outcome(self, order: DispatchOrder, contact: Contact) -> None:
        did, payer_did = order.agent_did, order.payer_did
        opened = self._directory.note_outcome(
            did, contact, self._clock.now_ms(), payer_did=payer_did
        )
        if opened is Opened.NONE:
            return
        whose = None if opened is Opened.FOR_ALL else payer_did
        log.warning("circuit opened owner=%s agent=%s payer=%s", self._address, did, whose or "all")
        self._dispatcher.refuse_waiting(did, whose)

    async def _end_revoked_work(self) -> None:
        if self._runner is not None and self._directory.revocations:
            await run_in_slices(self._runner.revoked_work_steps())

    # -- ledger commands --------------------------------------------------------------------------

    async def _commit(self, command: Command) -> Outcome:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._ledger.submit(command, future.set_result)
        return await future

    def _require_runner(self) -> Runner:
        if self._runner is None:
            raise Moved(
                ErrorCode.OVERLOADED, "the workflow owner is still starting", retry_after_s=1
            )
        return self._runner


def _pool_size(settings: Settings, parent: Parentage | None) -> int:
    # A child process reads the rows of one workflow only, so one connection is enough.
    return settings.reader_pool_size if parent is None else 1


def _build_directory(settings: Settings, schemas: AgentSchemas) -> PeerDirectory:
    return PeerDirectory(
        region=settings.region,
        fallback_regions=settings.fallback_regions,
        fee_bps=settings.fee_bps,
        service=settings.service,
        deployment_keys=settings.deployment_keys,
        default_secret=settings.signing_secret or None,
        max_concurrency=settings.agent_concurrency,
        latency_ms_max=LATENCY_MS_MAX,
        stake_bps=settings.stake_bps,
        score_min_percent=settings.auction_score_min_percent,
        schemas=schemas,
        trusted_verifiers=frozenset(settings.trusted_verifiers),
    )


def _build_settle(reply: asyncio.Future[OwnerReply]) -> Callable[[OwnerReply], None]:
    def settle(value: OwnerReply) -> None:
        if not reply.done():
            reply.set_result(value)

    return settle
