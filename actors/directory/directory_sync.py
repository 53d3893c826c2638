"""Keeps an owner's directory of agents, prices, versions and stakes in sync with the ledger.

The sync reads all rows once at the start, page by page, then, by looks at the ledger, what has
changed (`ledger/features/directory.py`): on request, after a notice, and twice a second. What
registers an agent, sets a price, stakes, or changes an agent's health by a heartbeat is answered
after every owner has read the change (`refresh`); what changes without such a request, a load or a
reputation, is read within 100 ms after its notice. Looks have a pace, so that changes cost an owner
the same however many there are, but for the reading of their rows. Decisions
agent-health-and-waiting, prices-and-budgets, fairness-and-long-work and postgres.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from actors.directory.agent_directory import Directory
from actors.process.slices import Slices
from actors.transport.messages import PublishRequest
from core.errors import ServiceError
from core.workflow.dag import CompiledNode
from ledger.features.agent_live import liveness_of
from ledger.features.directory import (
    AGENTS,
    KINDS,
    LIVE,
    PRICES,
    REPUTATIONS,
    REVOCATIONS,
    STAKES,
    SUBNETS,
    VERSIONS,
    DirectoryTail,
    Kept,
    Since,
)
from ledger.features.prices import price_of_row
from ledger.features.reputation import tally_of
from ledger.reads.stored import RowDict

log = logging.getLogger("callboard.owner")

RETRY_S: Final = 0.5
POLL_S: Final = 0.5
PEERS_MS: Final = 1_000
# Between a notice and the look: a request for what it is about mostly comes meanwhile.
NOTICE_DELAY_S: Final = 0.025
# Between two looks on notices: 1,000 changes a second may cost an owner 1 % of a core, and to wake
# up for a look takes as long as to read what has changed since the one before (decision
# agent-health-and-waiting).
LOOK_PAUSE_S: Final = 0.085
# Looks on request that may follow each other at once; then they have the same pace. Requests that
# arrive meanwhile share one.
LOOKS_SAVED_MAX: Final = 50
# Between two reads of heartbeats. After a longer pause the database, or this process, was away, and
# with it, perhaps, what stores the heartbeats.
HEARD_PAUSE_MS_MAX = 5_000


class DirectorySync:
    """Fills a directory from the ledger and keeps it fresh.

    Args:
        directory: the directory to fill.
        tail: looks at what has changed.
        owner: the owner's name, for the log.
        on_revoked: called when revocations were added or ended.
        now_ms: wall time.
        read_peers: reads the peers, which have no notices: once a second.
    """

    def __init__(
        self,
        directory: Directory,
        *,
        tail: DirectoryTail,
        owner: str,
        on_revoked: Callable[[], None],
        now_ms: Callable[[], int],
        read_peers: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._directory = directory
        self._read_peers = read_peers
        self._peers_read_ms = 0
        self._tail = tail
        self._owner = owner
        self._on_revoked = on_revoked
        self._now_ms = now_ms
        self._heard_ms = 0
        # What the last look that was made use of had seen, of each kind that was read.
        self._since: dict[Kept, Since] = {}
        self._uses: dict[Kept, Callable[[Sequence[RowDict]], None]] = {
            SUBNETS: directory.subnets.apply_rows,
            AGENTS: self._put_agents,
            PRICES: self._apply_prices,
            VERSIONS: directory.published.apply_rows,
            LIVE: self._apply_live,
            REPUTATIONS: self._apply_reputations,
            STAKES: self._apply_stakes,
            REVOCATIONS: self._apply_revocations,
        }
        self._pace = _Pace()
        # Of the requests that the next look answers; those that arrive during a look share it.
        self._asked: asyncio.Future[None] | None = None
        self._requested = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read everything, then keep it fresh in the background.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; the caller may call again, which reads what is left.
        """
        await self._read_new()
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """End the following and its connections."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self._tail.close()

    async def refresh(self) -> None:
        """Read the current agents, their health, revocations, prices and stakes.

        Between `start` and `close`.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE when the ledger cannot be read.
            ConnectionError: the sync is closed.
        """
        if self._following is None or self._following.done():
            raise ConnectionError("the directory is not followed")
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self._requested.set()
            self._tail.wake()
        await asyncio.shield(self._asked)

    def is_known(self, request: PublishRequest) -> bool:
        """Whether a workflow names only capabilities and agents that are known here.

        The replica that registered an agent may not have known this owner yet. A capability is
        known, too, if the node may go to a peer that offers it.
        """
        known, payer_did = self._directory, request.payer_did

        def is_missing(node: CompiledNode, capability_id: str, target: str | None) -> bool:
            is_unknown = known.is_missing(capability_id, target, payer_did)
            return is_unknown and not known.peer_prices(node, capability_id, payer_did)

        return not any(
            is_missing(node, node.capability_id, node.target_agent_id)
            or (node.requires_verification and is_missing(node, node.verifier_capability_id, None))
            for node in request.compiled.nodes.values()
        )

    async def _follow(self) -> None:
        """Look on request, after notices, and twice a second, until cancelled."""
        asked: asyncio.Future[None] | None = None
        try:
            while True:
                if self._asked is None:
                    await self._tail.wait_notice(POLL_S)
                    await self._wait_requested(self._pace.notice_pause_s())
                await self._pace.wait_turn()
                asked, self._asked = self._asked, None
                self._requested.clear()
                try:
                    await self._read_new()
                except Exception as error:  # the edge to Postgres, which may be unavailable
                    log.warning("changes not followed owner=%s", self._owner, exc_info=True)
                    _fail(asked, error)
                    if asked is None:
                        await self._wait_requested(RETRY_S)
                else:
                    if asked is not None:
                        asked.set_result(None)
        finally:
            closed = ConnectionError("the directory is not followed any more")
            _fail(asked, closed)
            _fail(self._asked, closed)

    async def _wait_requested(self, seconds: float) -> None:
        """Return after a request, or so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._requested.wait()

    async def _read_new(self) -> None:
        """Look once, and read and use what has changed.

        What cannot be used keeps nothing else from being used, and is read again by the next look.
        """
        now_ms = self._now_ms()
        self._directory.forget_departed(now_ms)
        if self._read_peers is not None and abs(now_ms - self._peers_read_ms) >= PEERS_MS:
            await self._read_peers()
            self._peers_read_ms = now_ms
        seen = {name: value for since in self._since.values() for name, value in since.items()}
        look = await self._tail.look(seen)
        failed: list[Exception] = []
        for kind in KINDS:
            since = self._since.get(kind)
            try:
                if since is None or look.has_changed(kind):
                    async for rows in self._tail.pages(kind, since):
                        await self._use(kind, rows)
            except ServiceError:
                raise
            except Exception as error:  # the edge of one kind: a row that cannot be used
                failed.append(error)
                continue
            self._since[kind] = look.since(kind)
            if kind is LIVE:
                self._note_heard()
        if failed:
            raise failed[0]

    async def _use(self, kind: Kept, rows: Sequence[RowDict]) -> None:
        use, slices = self._uses[kind], Slices()
        # A card takes long to read.
        for some in ([row] for row in rows) if kind is AGENTS else (rows,):
            use(some)
            await slices.pause()

    def _put_agents(self, rows: Sequence[RowDict]) -> None:
        self._directory.put(rows, at_ms=self._now_ms())

    def _apply_prices(self, rows: Sequence[RowDict]) -> None:
        self._directory.apply_prices({row["capability_id"]: price_of_row(row) for row in rows})

    def _apply_live(self, rows: Sequence[RowDict]) -> None:
        self._directory.apply_liveness({row["did"]: liveness_of(row) for row in rows})

    def _apply_reputations(self, rows: Sequence[RowDict]) -> None:
        self._directory.standings.apply_tallies({row["agent_did"]: tally_of(row) for row in rows})

    def _apply_stakes(self, rows: Sequence[RowDict]) -> None:
        self._directory.stakes.apply_parts(
            {row["agent_did"]: (row["free_micro"], row["locked_micro"]) for row in rows}
        )

    def _apply_revocations(self, rows: Sequence[RowDict]) -> None:
        self._directory.revocations.apply_rows(rows)
        self._on_revoked()

    def _note_heard(self) -> None:
        """Note that heartbeats and probes were read.

        After the first time, or a long pause, agents get the time of a heartbeat to be heard of: as
        long as the service was away, none of theirs was stored.
        """
        now_ms = self._now_ms()
        if now_ms - self._heard_ms > HEARD_PAUSE_MS_MAX:
            self._directory.count_silence_from(now_ms)
        self._heard_ms = now_ms


def _fail(waiting: asyncio.Future[None] | None, error: Exception) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_exception(error)
        waiting.exception()  # known, even if all who asked have left


class _Pace:
    """When to look next: some looks may follow each other at once, many have a rate."""

    def __init__(self) -> None:
        self._saved = float(LOOKS_SAVED_MAX)
        self._counted_s = -math.inf
        # When the last look began.
        self._looked_s = -math.inf

    def notice_pause_s(self) -> float:
        """Return how long to wait between a notice and its look."""
        now_s = asyncio.get_running_loop().time()
        return max(NOTICE_DELAY_S, self._looked_s + LOOK_PAUSE_S - now_s)

    async def wait_turn(self) -> None:
        """Wait until a look may begin, and count it."""
        self._count()
        if self._saved < 1:
            await asyncio.sleep((1 - self._saved) * LOOK_PAUSE_S)
            self._count()
        self._saved = max(0.0, self._saved - 1)
        self._looked_s = self._counted_s

    def _count(self) -> None:
        now_s = asyncio.get_running_loop().time()
        gained = (now_s - self._counted_s) / LOOK_PAUSE_S
        self._saved = min(float(LOOKS_SAVED_MAX), self._saved + gained)
        self._counted_s = now_s
