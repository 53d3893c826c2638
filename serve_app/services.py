"""`Services`: the connections, stores and caches that the handlers of a replica share.

Handlers also get the time and new ids from here, so that they read neither the clock nor a source
of randomness themselves.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from actors.gateway.gateway import Gateway
from actors.gateway.workflow_reads import WorkflowReads
from actors.process.cached_answer import CachedAnswer
from actors.routing.peer_client import PeerClient
from actors.routing.peer_heartbeats import HEARTBEAT_S
from core.egress.policy import address_denied
from core.ids import uuid7
from core.metric_families import Key
from core.settings import Settings
from federation.documents import fetch_document
from federation.name_resolver import NameResolver
from ledger.features.own_state import read_own_state
from ledger.features.peers import PeerReader, PeerStore
from ledger.features.receipts import ReceiptStore
from ledger.features.webhooks import WebhookStore
from ledger.reads.reader import LedgerReader
from ledger.replies import ReplyStore
from serve_app.callers.admission import Admission
from serve_app.callers.audited_reads import AuditedReads
from serve_app.callers.auth import Authenticator
from serve_app.callers.client_address import ClientAddresses
from serve_app.callers.limits import KeyedLocks, RateLimiter
from serve_app.http.bodies import RequestBounds
from serve_app.operations.agents.did_documents import DOCUMENT_BYTES_MAX, DidDocuments
from serve_app.operations.agents.heartbeat_store import Heartbeats
from serve_app.operations.agents.served_cards import ServedCards
from serve_app.operations.streams.event_tail import EventTail
from serve_app.operations.work.model_drafts import ModelDrafts

T = TypeVar("T")

_RESOLVE_TIMEOUT_S = 2.0


@dataclass(slots=True)
class Services:
    """The connections, stores and caches of one replica."""

    gateway: Gateway
    authenticator: Authenticator
    limiter: RateLimiter
    heartbeats: Heartbeats
    replies: ReplyStore
    receipts: ReceiptStore
    webhooks: WebhookStore
    peer_store: PeerStore
    peer_reader: PeerReader
    peer_client: PeerClient
    admission: Admission
    client_addresses: ClientAddresses
    # None if the settings name no language model.
    model_drafts: ModelDrafts | None = None
    # Counts of requests and refusals, for `/metrics`.
    counters: Counter[Key] = field(default_factory=Counter)
    bounds: RequestBounds = field(default_factory=RequestBounds)
    names: NameResolver = field(default_factory=NameResolver)
    # Serialises the invoice requests of each payer. Concurrent requests would compute the same
    # sums, but only one request can issue the invoice.
    invoicing: KeyedLocks[str] = field(default_factory=KeyedLocks)
    # The region, counts and offers that this deployment's heartbeats to its peers contain.
    own_state: CachedAnswer[dict[str, Any]] = field(init=False)
    did_documents: DidDocuments = field(init=False)
    audited_reads: AuditedReads = field(init=False)
    event_tail: EventTail = field(init=False)
    served_cards: ServedCards = field(init=False)
    _unfinished: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.own_state = CachedAnswer(
            lambda: read_own_state(self.reader, self.settings), age_max_s=HEARTBEAT_S
        )
        self.did_documents = DidDocuments(self._fetch_document)
        self.audited_reads = AuditedReads(lambda note: self.gateway.commit(note))
        self.served_cards = ServedCards(self._fetch_document)
        self.event_tail = EventTail(lambda: self.reader)

    async def _fetch_document(self, url: str) -> bytes:
        return await fetch_document(url, self.settings.egress_allow, DOCUMENT_BYTES_MAX)

    @property
    def settings(self) -> Settings:
        """The deployment's settings."""
        return self.gateway.settings

    @property
    def reader(self) -> LedgerReader:
        """The reader of committed rows in Postgres."""
        return self.gateway.reader

    @property
    def reads(self) -> WorkflowReads:
        """The reader of single workflows. It reads for concurrent requests with one query."""
        return self.gateway.reads

    def now_ms(self) -> int:
        """Return Unix time in milliseconds."""
        return time.time_ns() // 1_000_000

    def clock_ms(self) -> int:
        """Return a monotonic time in milliseconds, to measure durations."""
        return time.monotonic_ns() // 1_000_000

    def new_id(self) -> str:
        """Return a new id. Ids sort by their creation time."""
        return uuid7(at_ms=self.now_ms(), entropy=os.urandom(10))

    def new_workflow_id(self) -> str:
        """Return a new workflow id, in a shard whose owner process is near and has capacity."""
        workflow_id = self.new_id()
        return self.gateway.owners.place(workflow_id) or workflow_id

    async def to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work to its end, even if the client of the request disconnects.

        Ray Serve cancels the handler of a waiting request when the client disconnects (decision
        fairness-and-long-work). The work is shielded from this cancellation. So the handler gets
        the reply to a command that it has sent, and does the steps after the command.
        """
        task = asyncio.ensure_future(work)
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return await asyncio.shield(task)

    async def denied_endpoint(self, host: str, port: int, payer: str) -> str | None:
        """Return why the egress policy denies agents at this host, None if it allows them.

        A name is resolved, and all its addresses are checked. A name that cannot be resolved is
        allowed, because each connection checks the address again.

        Args:
            host: a name or an address.
            port: the port.
            payer: the DID under which this name look-up counts.
        """
        try:
            async with asyncio.timeout(_RESOLVE_TIMEOUT_S):
                found = await self.names.resolve(host, port, payer)
        except OSError:
            return None
        for *_, address in found:
            reason = address_denied(str(address[0]), self.settings.egress_allow)
            if reason is not None:
                return reason
        return None
