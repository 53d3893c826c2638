"""A workflow owner: everything one `WorkflowActor` holds, wired together, without Ray.

Starting is recovering: take a new epoch, load the directory, restore every unfinished workflow that
the ledger says is ours. The same path serves a restart, a takeover and an empty database.
design.md section 3 (Starting and owning, Recovery).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from actors.bidding import AuctioningDirectory
from actors.blobs import Blobs
from actors.clock import LoopClock
from actors.dispatch import Dispatcher
from actors.feeds import Feeds
from actors.ledger_client import LedgerClient, unavailable
from actors.messages import (
    CancelReply,
    CancelRequest,
    NodeResultReply,
    NodeResultRequest,
    OwnerReply,
    OwnerRequest,
    PublishReply,
    PublishRequest,
    RefreshRequest,
)
from actors.outbox import Outboxes
from actors.recovery import restore
from actors.results import take_result
from actors.runner import Runner
from actors.spread import Spread
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from ledger.blobs import BlobStore
from ledger.commands import ClaimWorkflows, Command, Outcome, OutcomeStatus, RegisterOwner
from ledger.queries.reader import LedgerReader, StoredWorkflow

log = logging.getLogger("callboard.owner")

Found = TypeVar("Found")

# How long a caller waits for a commit before it is told that the outcome is unknown.
COMMIT_TIMEOUT_S = 10.0
READ_RETRY_S = 0.5
# With each ping, so that someone looks at these agents; the next ones when these are better.
OPEN_CIRCUITS_TOLD = 100


class Owner:
    """One owner of workflows: runner, directory with its feeds, dispatcher.

    Args:
        name: unique per actor; a restarted actor has the same one and takes a new epoch.
        settings: the deployment's.
        ledger: the way to the ledger actor.
        on_lost: ends this process, so that a new one starts from what is stored.
    """

    def __init__(
        self, name: str, settings: Settings, ledger: LedgerClient, on_lost: Callable[[str], None]
    ) -> None:
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
        self._feeds = Feeds(
            self._directory,
            self._reader,
            database_url=settings.database_url,
            owner=name,
            on_revoked=self._end_revoked_work,
        )
        self._dispatcher = Dispatcher(
            settings,
            self._clock,
            begin=self._directory.begin,
            note=self._note,
            concurrency=self._concurrency,
            blobs=Blobs(self._blob_store, cache_bytes_max=settings.blob_cache_bytes_max),
        )
        self.spread = Spread(
            self._dispatcher,
            name,
            now_ms=self._clock.now_ms,
            is_always=settings.dispatch == "spread",
        )
        self.outboxes = Outboxes()
        self._runner: Runner | None = None
        self._epoch = 0
        self._restoring: set[asyncio.Task[int]] = set()

    # -- starting ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register a new epoch, then restore what this owner owns; ends when all is dispatched."""
        started_ms = self._clock.now_ms()
        command = RegisterOwner(
            key=f"owner:{self._name}:{started_ms}", owner=self._name, address=self._name
        )
        outcome = await self._until_known(command)
        self._epoch = int(outcome.result["epoch"])
        await self._until_read(self._feeds.start)
        self._runner = Runner(
            self._name,
            self._epoch,
            self._settings,
            ledger=self,
            directory=self._directory,
            dispatcher=self.spread,
            clock=self._clock,
            on_finished=self.outboxes.put,
            on_lost=self._on_lost,
            on_unsure=self._restore_soon,
        )
        restored = await self.restore_unfinished()
        log.info(
            "owner started owner=%s epoch=%d restored=%d ms=%d",
            self._name,
            self._epoch,
            restored,
            self._clock.now_ms() - started_ms,
        )

    async def restore_unfinished(self) -> int:
        """Restore every unfinished workflow owned but not running here; returns how many."""
        runner = self._started()
        count = 0
        # What begins to be halted while the rows are read needs rows that are read later.
        driven = runner.driven()
        for stored in await self._unfinished():
            if stored.workflow_id in driven or runner.runs(stored.workflow_id):
                continue
            try:
                restored = restore(stored, self._settings, self._clock.now_ms())
            except (ServiceError, ValueError, KeyError):
                # Stored by another version, or damaged: one bad workflow must not stop the others.
                log.exception("workflow cannot be restored workflow=%s", stored.workflow_id)
                continue
            runner.adopt(*restored)
            count += 1
        self._end_revoked_work()
        return count

    async def take_over(self, is_left: Callable[[str], bool]) -> None:
        """Claim and restore what the owners of these names, who have ended, have left."""
        for stored in await self._until_read(self._reader.owners):
            if stored.address and is_left(stored.name):
                command = ClaimWorkflows(
                    key=f"claim:{stored.name}:{stored.epoch}",
                    from_owner=stored.name,
                    from_epoch=stored.epoch,
                    to_owner=self._name,
                    to_epoch=self._epoch,
                )
                outcome = await self._commit(command)
                log.info("owner taken over owner=%s outcome=%s", stored.name, outcome)
        await self.restore_unfinished()

    async def _unfinished(self) -> list[StoredWorkflow]:
        """Read what this owner owns, however long Postgres is away: nobody would ask again."""
        return await self._until_read(partial(self._reader.unfinished, self._name))

    async def _until_read(self, read: Callable[[], Awaitable[Found]]) -> Found:
        while True:
            try:
                return await read()
            except ServiceError as error:
                log.warning("rows not read owner=%s reason=%s", self._name, error)
                await asyncio.sleep(READ_RETRY_S)

    async def close(self) -> None:
        """End every task and connection."""
        await self._feeds.close()
        for task in self._restoring:
            task.cancel()
        await asyncio.gather(*self._restoring, return_exceptions=True)
        await self._dispatcher.close()
        await self._blob_store.close()
        await self._reader.close()

    # -- requests ---------------------------------------------------------------------------------

    async def handle(self, batch: Sequence[OwnerRequest]) -> list[OwnerReply]:
        """Answer a batch of requests, each after its commit, in their order."""
        runner = self._started()
        try:
            self._ledger.refuse_when_down()
            if any(isinstance(request, RefreshRequest) for request in batch):
                await self._feeds.refresh()
            await self._feeds.ensure_known(
                [request for request in batch if isinstance(request, PublishRequest)]
            )
        except ServiceError as error:
            return [error] * len(batch)
        loop = asyncio.get_running_loop()
        replies: list[asyncio.Future[OwnerReply]] = []
        for request in batch:
            reply: asyncio.Future[OwnerReply] = loop.create_future()
            replies.append(reply)
            match request:
                case PublishRequest():
                    try:
                        runner.publish(request, _settler(reply))
                    except ServiceError as refused:  # its cost cannot be estimated
                        reply.set_result(refused)
                case CancelRequest():
                    runner.cancel(request, _settler(reply))
                case RefreshRequest():
                    reply.set_result(None)
                case NodeResultRequest():
                    take_result(runner, request, self._clock.now_ms(), _settler(reply))
                case _:
                    if not runner.watch(request.workflow_id, request.watcher):
                        self.outboxes.put(request.workflow_id, {request.watcher})
                    reply.set_result(None)
        await asyncio.wait(replies, timeout=COMMIT_TIMEOUT_S)
        return [reply.result() if reply.done() else unavailable() for reply in replies]

    def submit(self, command: Command, done: Callable[[Outcome], None]) -> None:
        """Implement `LedgerPort`: a command whose fate cannot be known ends this process."""

        def settled(outcome: Outcome | BaseException) -> None:
            if isinstance(outcome, BaseException):
                self._on_lost(f"{command.key}: {outcome!r}")
            else:
                done(outcome)

        self._ledger.submit(command, settled)

    def statistics(self) -> dict[str, Any]:
        """Return counters of all parts, for `ping` and metrics."""
        runner = self._runner
        return {
            "owner": self._name,
            "epoch": self._epoch,
            "runner": runner.statistics() if runner is not None else None,
            "dispatch": self._dispatcher.statistics(),
            "ledger": self._ledger.statistics(),
            "openCircuits": self._directory.open_circuits()[:OPEN_CIRCUITS_TOLD],
        }

    # -- of agents ---------------------------------------------------------------------------------

    def _concurrency(self, did: str) -> int:
        """Return this owner's share of what an agent takes at once."""
        entry = self._directory.entry(did)
        most = self._settings.agent_concurrency if entry is None else entry.max_concurrency
        return -(-most // self.spread.owner_count)

    def _note(self, did: str, is_reachable: bool | None) -> None:
        now_ms = self._clock.now_ms()
        if self._directory.note_outcome(did, is_reachable=is_reachable, at_ms=now_ms):
            log.warning("agent is left alone owner=%s agent=%s", self._name, did)
            asyncio.get_running_loop().call_soon(self._dispatcher.refuse_waiting, did)

    def _end_revoked_work(self) -> None:
        if self._runner is not None and self._directory.revocations:
            self._runner.end_revoked_work()

    async def _restore_again(self) -> int:
        """Restore by what is known of agents now: a revocation may be why."""
        await self._until_read(self._feeds.refresh)
        return await self.restore_unfinished()

    def _restore_soon(self, _: str) -> None:
        task = asyncio.create_task(self._restore_again())
        self._restoring.add(task)
        task.add_done_callback(self._restoring.discard)

    # -- small things -----------------------------------------------------------------------------

    async def _until_known(self, command: Command) -> Outcome:
        outcome = await self._commit(command)
        assert outcome.status is OutcomeStatus.APPLIED, f"{command.key}: {outcome}"
        return outcome

    async def _commit(self, command: Command) -> Outcome:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.submit(command, future.set_result)
        return await future

    def _started(self) -> Runner:
        if self._runner is None:
            raise ServiceError(
                ErrorCode.OVERLOADED, "the workflow owner is still starting", retry_after_s=1
            )
        return self._runner


def _settler(
    reply: asyncio.Future[OwnerReply],
) -> Callable[[PublishReply | CancelReply | NodeResultReply | ServiceError | None], None]:
    def settle(value: OwnerReply) -> None:
        if not reply.done():
            reply.set_result(value)

    return settle
