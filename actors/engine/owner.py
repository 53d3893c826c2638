"""A workflow owner: the parts of one `WorkflowActor`, wired together, without Ray.

Every start is a recovery: the owner takes a new epoch, loads the directory, then restores in the
background every unfinished workflow that the ledger assigns to it. A restart, a takeover and an
empty database take the same path. Work on many workflows runs in slices, which bounds each turn of
the event loop. design.md section 3 (Starting and owning, Recovery). Decision 0091.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from actors.directory.auction_candidates import AuctioningDirectory
from actors.directory.circuits import Opened
from actors.directory.directory_sync import DirectorySync
from actors.dispatch.dispatcher import Dispatcher
from actors.dispatch.large_results import Blobs
from actors.dispatch.remote_dispatch import RemoteDispatch
from actors.engine.node_results import take_result
from actors.engine.outbox import Outboxes
from actors.engine.restorer import AheadLedger, Restorer, read_until_success
from actors.engine.runner import Runner
from actors.engine.step_commands import rereading_error
from actors.ports import Contact, DispatchOrder
from actors.process.at_work import AtWork
from actors.process.loop_clock import LoopClock
from actors.process.slices import Slices, run_in_slices
from actors.transport.late_replies import LateReplies
from actors.transport.ledger_client import LedgerClient, ledger_unavailable_error
from actors.transport.messages import (
    CancelRequest,
    NodeResultRequest,
    NotYet,
    OwnerReply,
    OwnerRequest,
    PublishRequest,
    ResumeRequest,
    WatchReply,
    WatchRequest,
)
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from federation.name_resolver import NameResolver
from ledger.blobs import BlobStore
from ledger.commands import Command, Outcome, OutcomeStatus
from ledger.merged_runs import MergedRuns
from ledger.owners.owner_commands import ClaimWorkflows, RegisterOwner
from ledger.reads.reader import LedgerReader
from ledger.workflows.unfinished import UnfinishedPages

log = logging.getLogger("callboard.owner")

# After it, the caller's reply says that the outcome is unknown.
COMMIT_TIMEOUT_S = 10.0
# In each ping reply: the timekeeper probes these agents. Further ones follow when these recover.
OPEN_CIRCUITS_REPORTED_MAX = 100


class Owner:
    """One owner of workflows: runner, directory and its sync, dispatcher.

    Args:
        name: unique per actor; a restarted actor keeps its name and takes a new epoch.
        settings: the deployment's.
        ledger: the client of the ledger actor.
        on_lost: ends this process, so that a new one starts from the stored rows.
        at_work: the workflow at work, and those that have ended this owner's processes before.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        ledger: LedgerClient,
        on_lost: Callable[[str], None],
        at_work: AtWork,
    ) -> None:
        self._at_work = at_work
        self._name = name
        self._settings = settings
        self._ledger = ledger
        self._on_lost = on_lost
        self._clock = LoopClock()
        self._reader = LedgerReader(settings.database_url, pool_size=settings.reader_pool_size)
        self._blob_store = BlobStore(settings.database_url, self._reader)
        self._directory = AuctioningDirectory(
            service=settings.service,
            deployment_key=bytes.fromhex(settings.deployment_key),
            default_secret=settings.signing_secret or None,
            max_concurrency=settings.agent_concurrency,
            rules=settings.ranking,
            latency_ms_max=settings.reputation_latency_ms_max,
            stake_bps=settings.stake_bps,
            score_min_percent=settings.auction_score_min_percent,
        )
        self._revoked_work = MergedRuns("work of revoked agents", self._end_revoked_work)
        self._directory_sync = DirectorySync(
            self._directory,
            self._reader,
            database_url=settings.database_url,
            owner=name,
            on_revoked=self._revoked_work.soon,
            now_ms=self._clock.now_ms,
        )
        self._dispatcher = Dispatcher(
            settings,
            self._clock,
            begin=self._directory.begin,
            note=self._note_outcome,
            names=NameResolver(),
            concurrency=self._concurrency,
            at_work=self._at_work,
            blobs=Blobs(self._blob_store, cache_bytes_max=settings.blob_cache_bytes_max),
        )
        self.remote_dispatch = RemoteDispatch(
            self._dispatcher,
            name,
            now_ms=self._clock.now_ms,
            is_always=settings.dispatch == "spread",
        )
        self.outboxes = Outboxes()
        self._runner: Runner | None = None
        self._restorer: Restorer | None = None
        self._epoch = 0
        self._learning: set[asyncio.Task[None]] = set()

    # -- starting ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register a new epoch, load the directory, and start to restore this owner's workflows."""
        started_ms = self._clock.now_ms()
        command = RegisterOwner(
            key=f"owner:{self._name}:{started_ms}", owner=self._name, address=self._name
        )
        outcome = await self._commit_applied(command)
        self._epoch = int(outcome.result["epoch"])
        await read_until_success(self._directory_sync.start)
        ahead = AheadLedger(self._ledger)
        runner = Runner(
            self._name,
            self._epoch,
            self._settings,
            ledger=ahead,
            directory=self._directory,
            dispatcher=self.remote_dispatch,
            clock=self._clock,
            on_finished=self.outboxes.put,
            on_lost=self._on_lost,
            on_rows_needed=self._request_restore,
            at_work=self._at_work,
        )
        self._runner = runner
        self._restorer = Restorer(
            runner,
            UnfinishedPages(self._reader, self._name),
            refresh=self._directory_sync.refresh,
            ahead=ahead,
        )
        log.info(
            "owner started owner=%s epoch=%d ms=%d",
            self._name,
            self._epoch,
            self._clock.now_ms() - started_ms,
        )
        self.restore_all()

    def restore_all(self) -> asyncio.Future[None]:
        """Restore every owned workflow that is not driven here; the future is done afterwards."""
        assert self._restorer is not None, "an owner restores after it has started"
        return self._restorer.restore_all()

    @property
    def quarantined(self) -> int:
        """Return how many quarantined workflows this owner keeps."""
        return 0 if self._runner is None else self._runner.statistics().quarantined

    @property
    def steps(self) -> int:
        """Return a counter of the work done here; any thread may read it."""
        runner, restorer = self._runner, self._restorer
        steps = 0 if runner is None else runner.statistics().commands
        return steps + (0 if restorer is None else restorer.count)

    async def take_over(self, is_left: Callable[[str], bool]) -> None:
        """Claim and restore the unfinished workflows of ended owners.

        Args:
            is_left: whether the owner of this name has ended.
        """
        for stored in await read_until_success(self._reader.owners):
            if is_left(stored.name):
                command = ClaimWorkflows(
                    key=f"claim:{stored.name}:{stored.epoch}",
                    from_owner=stored.name,
                    from_epoch=stored.epoch,
                    to_owner=self._name,
                    to_epoch=self._epoch,
                )
                outcome = await self._commit(command)
                log.info("owner taken over owner=%s outcome=%s", stored.name, outcome)
        await self.restore_all()

    async def close(self) -> None:
        """End every task and connection."""
        await self._directory_sync.close()
        if self._restorer is not None:
            await self._restorer.close()
        await self._revoked_work.close()
        for task in self._learning:
            task.cancel()
        await asyncio.gather(*self._learning, return_exceptions=True)
        await self._dispatcher.close()
        await self._blob_store.close()
        await self._reader.close()

    # -- requests ---------------------------------------------------------------------------------

    async def handle(
        self, batch: Sequence[OwnerRequest], late: LateReplies | None = None
    ) -> list[OwnerReply]:
        """Answer a batch of requests, each after its commit, in their order.

        Args:
            late: keeps the replies that take long; None: they are waited for.
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
                task = asyncio.create_task(self._handle_when_known(runner, request, reply))
                self._learning.add(task)
                task.add_done_callback(self._learning.discard)
            else:
                self._handle_request(runner, request, reply)
            await slices.pause()
        if late is not None:
            return await late.settled(replies)
        await asyncio.wait(replies, timeout=COMMIT_TIMEOUT_S)
        return [reply.result() if reply.done() else ledger_unavailable_error() for reply in replies]

    async def refresh(self) -> None:
        """Read the agents, prices and stakes from the ledger; concurrent callers share a read.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE when it cannot be read.
        """
        await self._directory_sync.refresh()

    async def _handle_when_known(
        self, runner: Runner, request: PublishRequest, reply: asyncio.Future[OwnerReply]
    ) -> None:
        """Read what a workflow names and this owner does not know; only its payer waits for it."""
        try:
            await self._directory_sync.learn(request)
        except ServiceError as error:
            _build_settle(reply)(error)
            return
        except Exception:  # the edge of one request: it is refused for what is not known
            log.exception("directory not read for workflow=%s", request.workflow_id)
        self._handle_request(runner, request, reply)

    def _handle_request(
        self, runner: Runner, request: OwnerRequest, reply: asyncio.Future[OwnerReply]
    ) -> None:
        """Start to answer one request; an error is the reply to this request alone."""
        settle = _build_settle(reply)
        try:
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
                    take_result(runner, request, self._clock.now_ms(), settle)
                case WatchRequest():
                    is_held = runner.watch(request.workflow_id, request.watcher)
                    settle(WatchReply() if is_held else None)
        except ServiceError as error:  # the workflow's cost cannot be estimated
            settle(error)
        except Exception:  # the edge of one request: the others of its batch are answered too
            log.exception("request failed workflow=%s", request.workflow_id)
            settle(ServiceError(ErrorCode.INTERNAL_ERROR, "the request failed inside the service"))

    def _request_missing_restore(self, runner: Runner, request: OwnerRequest) -> bool:
        """Say whether a workflow may be unfinished and not restored; if so, request its restore."""
        assert self._restorer is not None, "an owner answers after it has started"
        if not self._restorer.is_scanning or isinstance(request, PublishRequest):
            return False
        if isinstance(request, NodeResultRequest) and request.is_late:
            return False
        if runner.is_driving(request.workflow_id) or runner.is_quarantined(request.workflow_id):
            return False
        self._restorer.restore_one(request.workflow_id)
        return True

    def statistics(self) -> dict[str, Any]:
        """Return the counters of all parts, for `ping` and metrics."""
        runner = self._runner
        return {
            "owner": self._name,
            "epoch": self._epoch,
            "runner": runner.statistics() if runner is not None else None,
            "dispatch": self._dispatcher.statistics(),
            "ledger": self._ledger.statistics(),
            "isRestoring": self._restorer is None or self._restorer.is_scanning,
            "restored": 0 if self._restorer is None else self._restorer.count,
            "openCircuits": self._directory.open_circuits()[:OPEN_CIRCUITS_REPORTED_MAX],
        }

    # -- agents -----------------------------------------------------------------------------------

    def _concurrency(self, did: str) -> int:
        """Return this owner's share of an agent's concurrency."""
        entry = self._directory.entry(did)
        most = self._settings.agent_concurrency if entry is None else entry.max_concurrency
        return -(-most // self.remote_dispatch.owner_count)

    def _note_outcome(self, order: DispatchOrder, contact: Contact) -> None:
        did, payer_did = order.agent_did, order.payer_did
        opened = self._directory.note_outcome(
            did, contact, self._clock.now_ms(), payer_did=payer_did
        )
        if opened is Opened.NOT:
            return
        whose = None if opened is Opened.FOR_ALL else payer_did
        log.warning(
            "agent is left alone owner=%s agent=%s payer=%s", self._name, did, whose or "all"
        )
        self._dispatcher.refuse_waiting(did, whose)

    async def _end_revoked_work(self) -> None:
        if self._runner is not None and self._directory.revocations:
            await run_in_slices(self._runner.revoked_work_steps())

    def _request_restore(self, workflow_id: str) -> None:
        assert self._restorer is not None, "a runner works after its owner has started"
        self._restorer.restore_one(workflow_id)

    # -- ledger commands --------------------------------------------------------------------------

    async def _commit_applied(self, command: Command) -> Outcome:
        outcome = await self._commit(command)
        assert outcome.status is OutcomeStatus.APPLIED, f"{command.key}: {outcome}"
        return outcome

    async def _commit(self, command: Command) -> Outcome:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._ledger.submit(command, future.set_result)
        return await future

    def _require_runner(self) -> Runner:
        if self._runner is None:
            raise NotYet(
                ErrorCode.OVERLOADED, "the workflow owner is still starting", retry_after_s=1
            )
        return self._runner


def _build_settle(reply: asyncio.Future[OwnerReply]) -> Callable[[OwnerReply], None]:
    def settle(value: OwnerReply) -> None:
        if not reply.done():
            reply.set_result(value)

    return settle
