"""Keeps an owner's directory of agents, prices, versions and stakes in sync with the ledger.

At the start the sync reads all rows, page by page. Then it follows changes. A poll is one query
that tells which kinds of rows have changed; after it, the sync reads the changed rows
(`ledger/features/directory.py`). The sync polls on request, after a notice from Postgres, and twice
a second.

Some requests must take effect at all owners before their reply: registering an agent, setting a
price, staking, and a heartbeat that changes an agent's health. For these the service calls
`refresh` at each owner. Other changes, such as loads and reputations, are read within 100 ms after
their notice. The rate of polls is limited. With more changes, each poll reads more rows, but the
number of polls does not grow.
Decisions agent-health-and-waiting, prices-and-budgets, fairness-and-long-work and postgres.
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
# The delay between a notice and its poll. Most requests to read the same change arrive during this
# delay, and share the poll.
NOTICE_DELAY_S: Final = 0.025
# The shortest interval between two polls after notices. It bounds the cost: following 1,000 changes
# per second may take 1 % of a core. A poll's wake-up takes as long as reading the changes of one
# interval (decision agent-health-and-waiting).
POLL_PAUSE_S: Final = 0.085
# The most polls on request in a burst. Later polls have the interval `POLL_PAUSE_S`; requests that
# arrive during an interval share one poll.
POLLS_SAVED_MAX: Final = 50
# The longest normal pause between two reads of heartbeats. After a longer pause, the database or
# this process was unavailable, and heartbeats may not have been stored.
HEARD_PAUSE_MS_MAX = 5_000


class DirectorySync:
    """Fills a directory from the ledger and keeps it fresh.

    Args:
        directory: the directory to fill.
        tail: reads from the ledger what has changed.
        owner: the address of the owner, for the log.
        on_revoked: called after revocations were added or ended.
        now_ms: wall time, Unix milliseconds.
        read_peers: reads the peers. It is called once a second, because peers have no notices.
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
        # By kind of rows: the positions of the last poll whose rows of this kind were applied.
        self._since: dict[Kept, Since] = {}
        self._uses: dict[Kept, Callable[[Sequence[RowDict]], None]] = {
            SUBNETS: directory.subnets.apply_rows,
            AGENTS: lambda rows: directory.put(rows, at_ms=now_ms()),
            PRICES: lambda rows: directory.apply_prices(
                {row["capability_id"]: price_of_row(row) for row in rows}
            ),
            VERSIONS: directory.published.apply_rows,
            LIVE: lambda rows: directory.apply_liveness(
                {row["did"]: liveness_of(row) for row in rows}
            ),
            REPUTATIONS: lambda rows: directory.standings.apply_tallies(
                {row["agent_did"]: tally_of(row) for row in rows}
            ),
            STAKES: lambda rows: directory.stakes.apply_parts(
                {row["agent_did"]: (row["free_micro"], row["locked_micro"]) for row in rows}
            ),
            REVOCATIONS: self._apply_revocations,
        }
        self._pace = _Pace()
        # A future that is done after the next poll. All requests that arrive before it share it.
        self._asked: asyncio.Future[None] | None = None
        self._requested = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read all rows, then start the task that keeps the directory in sync.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE. The caller may call again: kinds of rows that were
                read before are not read again in full.
        """
        await self._read_new()
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """End the task and close its connections."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self._tail.close()

    async def refresh(self) -> None:
        """Read all changes that are committed by now; return when the directory has them.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE when the ledger cannot be read.
            ConnectionError: the sync is not started, or is closed.
        """
        if self._following is None or self._following.done():
            raise ConnectionError("the directory is not followed")
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self._requested.set()
            self._tail.wake()
        await asyncio.shield(self._asked)

    def is_known(self, request: PublishRequest) -> bool:
        """Say whether the directory has all capabilities and agents that a workflow names.

        An agent may be missing because the replica that registered it did not know this owner yet,
        so the replica did not wait for this owner's refresh. A capability also counts as known if a
        peer offers it and the node may go to that peer.
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
        """Poll on request, after notices and every `POLL_S`, until cancelled."""
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
        """Return after a request for a poll, or after this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._requested.wait()

    async def _read_new(self) -> None:
        """Poll once, read the rows that have changed, and apply them to the directory.

        If rows of one kind cannot be applied, the other kinds are still applied, and the next poll
        reads the failed kind again.
        """
        now_ms = self._now_ms()
        self._directory.forget_departed(now_ms)
        if self._read_peers is not None and abs(now_ms - self._peers_read_ms) >= PEERS_MS:
            await self._read_peers()
            self._peers_read_ms = now_ms
        seen = {name: value for since in self._since.values() for name, value in since.items()}
        poll = await self._tail.poll(seen)
        failed: list[Exception] = []
        for kind in KINDS:
            since = self._since.get(kind)
            try:
                if since is None or poll.has_changed(kind):
                    async for rows in self._tail.pages(kind, since):
                        await self._use(kind, rows)
            except ServiceError:
                raise
            except Exception as error:  # the edge of one kind: other kinds are still applied
                failed.append(error)
                continue
            self._since[kind] = poll.since(kind)
            if kind is LIVE:
                self._note_heard()
        if failed:
            raise failed[0]

    async def _use(self, kind: Kept, rows: Sequence[RowDict]) -> None:
        use, slices = self._uses[kind], Slices()
        # Parsing a card takes long, so agents are applied one by one, with pauses.
        for some in ([row] for row in rows) if kind is AGENTS else (rows,):
            use(some)
            await slices.pause()

    def _apply_revocations(self, rows: Sequence[RowDict]) -> None:
        self._directory.revocations.apply_rows(rows)
        self._on_revoked()

    def _note_heard(self) -> None:
        """Note that heartbeats and probes were read.

        At the first read, and after a long pause, the silence of all agents is counted from the
        current time: no heartbeats were stored while the service was unavailable.
        """
        now_ms = self._now_ms()
        if now_ms - self._heard_ms > HEARD_PAUSE_MS_MAX:
            self._directory.count_silence_from(now_ms)
        self._heard_ms = now_ms


def _fail(waiting: asyncio.Future[None] | None, error: Exception) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_exception(error)
        # Marks the exception as retrieved, so that asyncio does not warn if all callers have left.
        waiting.exception()


class _Pace:
    """The rate limit of polls: a burst of `POLLS_SAVED_MAX`, then one poll per `POLL_PAUSE_S`."""

    def __init__(self) -> None:
        self._saved = float(POLLS_SAVED_MAX)
        self._counted_s = -math.inf
        # The loop time at which the last poll began.
        self._looked_s = -math.inf

    def notice_pause_s(self) -> float:
        """Return how long to wait after a notice before its poll, seconds."""
        now_s = asyncio.get_running_loop().time()
        return max(NOTICE_DELAY_S, self._looked_s + POLL_PAUSE_S - now_s)

    async def wait_turn(self) -> None:
        """Wait until a poll may begin, and count it."""
        self._count()
        if self._saved < 1:
            await asyncio.sleep((1 - self._saved) * POLL_PAUSE_S)
            self._count()
        self._saved = max(0.0, self._saved - 1)
        self._looked_s = self._counted_s

    def _count(self) -> None:
        now_s = asyncio.get_running_loop().time()
        gained = (now_s - self._counted_s) / POLL_PAUSE_S
        self._saved = min(float(POLLS_SAVED_MAX), self._saved + gained)
        self._counted_s = now_s
