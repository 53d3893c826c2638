"""Exchanges heartbeats with peers, and reads the peers' trust events.

A peer's reply to a heartbeat contains the peer's own heartbeat. Each peer has its own tasks, so a
peer that hangs does not delay the exchanges with other peers. The times of the next exchanges are
only in memory: a successor of this process exchanges with every peer at once.
Reference: features.md (Peers).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from actors.process.cached_answer import CachedAnswer
from actors.process.loop_clock import SteadyTime, every, monotonic_ms
from actors.routing.peer_client import PeerClient
from actors.routing.peer_heartbeats import (
    HEARTBEAT_PATH,
    HEARTBEAT_S,
    own_heartbeat,
    take_signed_heartbeat,
)
from actors.transport.ledger_route import LedgerRoute
from core.errors import ServiceError
from core.peers.documents import read_trust_page
from core.records.api.peers import PeerHeartbeat
from core.records.api.shape import invalid, parsed
from core.settings import Settings
from ledger.features.own_state import read_own_state
from ledger.features.peers import PeerStore, RotatePeerKey, present_peers
from ledger.reads.reader import LedgerReader, RowDict

log = logging.getLogger("callboard.peers")

ROUND_S: Final = 1.0
# The pause between two reads of a peer's trust events. A peer's revocation arrives here within 5 s:
# this pause, the time of a round, and the time of the request.
TRUST_S: Final = 3.0
TRUST_PATH: Final = "/v1/federation/trust-events"
COMMIT_TIMEOUT_S: Final = 5.0
# The most pages that one exchange reads from a peer.
TRUST_PAGES_MAX: Final = 20


class PeerWatch:
    """Exchanges heartbeats and reads trust events; must be created inside its event loop.

    Args:
        settings: the deployment's settings.
        reader: reads committed rows.
    """

    def __init__(self, settings: Settings, reader: LedgerReader) -> None:
        self._settings = settings
        self._reader = reader
        self._store = PeerStore(settings.database_url)
        self._ledger = LedgerRoute(settings).client()
        self._client = PeerClient(settings, reader)
        self._state = CachedAnswer(lambda: read_own_state(reader, settings), age_max_s=HEARTBEAT_S)
        self._now_ms = SteadyTime().now_ms
        # The keys of these dictionaries are (peer id, kind of exchange).
        self._due_ms: dict[tuple[str, str], int] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        # The last failure of each exchange; a repeated failure is not logged again.
        self._failures: dict[tuple[str, str], str] = {}

    async def run(self) -> None:
        """Exchange until cancelled."""
        await every(ROUND_S, self.round, "round of peers")

    async def round(self) -> None:
        """Start each peer's due exchanges; an exchange whose predecessor still runs is left out."""
        rows = await present_peers(self._reader)
        known = {row["id"] for row in rows}
        for kept in (self._due_ms, self._failures):
            for key in [key for key in kept if key[0] not in known]:
                del kept[key]
        for row in rows:
            self._start_if_due(row, "heartbeat", self._exchange_heartbeats, HEARTBEAT_S)
            if row["proven_key"] == row["public_key"]:
                self._start_if_due(row, "trust events", self._read_trust_events, TRUST_S)

    def _start_if_due(
        self,
        row: RowDict,
        kind: str,
        exchange: Callable[[RowDict], Awaitable[None]],
        pause_s: float,
    ) -> None:
        key, now_ms = (row["id"], kind), monotonic_ms()
        if key in self._tasks or self._due_ms.get(key, 0) > now_ms:
            return
        self._due_ms[key] = now_ms + int(pause_s * 1_000)
        task = asyncio.create_task(self._try(key, exchange, row))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _try(
        self,
        key: tuple[str, str],
        exchange: Callable[[RowDict], Awaitable[None]],
        row: RowDict,
    ) -> None:
        failure = ""
        try:
            await exchange(row)
        except ServiceError as error:
            failure = f"{error.code.value}: {error.detail}"
        except Exception:  # the edge of the task: a failure must not end the watch
            log.exception("exchange with a peer failed peer=%s kind=%s", *key)
        if failure and failure != self._failures.get(key):
            log.warning("%s of the peer %s failed: %s", key[1], key[0], failure[:500])
        self._failures[key] = failure

    async def _exchange_heartbeats(self, row: RowDict) -> None:
        """Send a heartbeat, and store the peer's heartbeat from the reply."""
        sent = await own_heartbeat(self._state, self._reader, self._settings, now_ms=self._now_ms())
        reply = await self._client.post(row, HEARTBEAT_PATH, sent)
        document = reply.get("heartbeat", {})
        heartbeat = parsed(PeerHeartbeat, document)
        if heartbeat.did != row["did"]:
            raise invalid("did", str(heartbeat.did), row["did"])
        await take_signed_heartbeat(
            document, heartbeat, self._reader, self._store, self._commit, now_ms=self._now_ms()
        )

    async def _read_trust_events(self, row: RowDict) -> None:
        """Read and store the trust events that follow the last stored event."""
        after = row["trust_id"]
        for _ in range(TRUST_PAGES_MAX):
            document = await self._client.get(row, f"{TRUST_PATH}?after={after}")
            page = read_trust_page(
                document, did=row["did"], public_key=row["public_key"], after=after
            )
            if page.to == after:
                return
            if not await self._store.store_trust(row["id"], page):
                return  # another timekeeper has stored a page meanwhile
            after = page.to
            if not page.events:
                return

    async def _commit(self, command: RotatePeerKey) -> None:
        outcome = await self._ledger.commit(command, timeout_s=COMMIT_TIMEOUT_S)
        if outcome.error is not None:
            raise ServiceError(outcome.error, outcome.detail)
