"""Follows the audit log and stores a delivery for each pair of an entry and a matching subscriber.

Subscribers are webhooks, the `webhookUrl` of publishes, and event triggers. Entries are read in
pages, together with the subscribers of the DIDs that the entries concern. One statement stores a
page's deliveries and the new position, so each entry is processed once.
Reference: features.md (Webhooks, Triggers).
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import NAMESPACE_URL, uuid5

from actors.process.loop_clock import SteadyTime, every
from core.errors import ServiceError
from core.ids import uuid7
from core.json_text import read_json
from core.records.api.triggers import ALL_EVENTS
from core.triggers.event_match import first_match
from ledger.features.audit_log import LogFollower, log_position
from ledger.features.webhooks import (
    DeliveryStore,
    ended_publishes,
    entries_of_subscribers,
    entry_rows,
    subscribers,
)
from ledger.reads.event_entries import END_EVENTS
from ledger.reads.reader import LedgerReader, RowDict

ROUND_S: Final = 0.5
# `ROWS_MAX`: the most rows of a page; a row is a pair of a log entry and an owner that has
# subscribers. `ENTRIES_OF_ROW`: the number of log entries that are searched per row.
ROWS_MAX, ENTRIES_OF_ROW = 250, 16
# The most pending deliveries per owner. The limit applies three times: to the owner's webhooks,
# which share it equally, to the owner's publishes, and to the owner's event triggers.
UNDELIVERED_MAX: Final = 10_000
# The most targets whose pending deliveries one statement counts.
COUNTED_MAX: Final = 50
# The most pairs of an entry and an event trigger of its type, per owner and page of entries.
PAIRS_OF_OWNER_MAX: Final = 2_000
# The `error` of a trigger's delivery that exceeds a limit: its run is only recorded as skipped.
RATE: Final = "rate"
# For each trigger, at most one skipped run per minute is recorded.
MINUTE_MS: Final = 60_000


class Pair(NamedTuple):
    """An audit entry, and a webhook or event trigger that subscribes to one of its events."""

    entry: RowDict
    subscriber: RowDict
    event_type: str


class Delivery(NamedTuple):
    """A delivery to store.

    `most`: the most pending deliveries of the target. `address`: the URL of a publish, or the id of
    a trigger. `error`: the reason why the run is only recorded as skipped; None: the run starts.
    """

    entry: RowDict
    event_type: str
    kind: str
    target_id: str
    most: int
    address: str | None = None
    error: str | None = None


class EventFollower:
    """Makes deliveries of audit entries.

    Args:
        reader: reads committed rows.
        store: reads and writes the deliveries.
    """

    def __init__(self, reader: LedgerReader, store: DeliveryStore) -> None:
        self._reader = reader
        self._store = store
        self._now_ms = SteadyTime().now_ms
        self._rows = ROWS_MAX
        # An upper bound of each target's pending deliveries. It is cached because counting is slow.
        self._pending: dict[str, int] = {}
        # The number of runs of each trigger in the current minute.
        self._minute = 0
        self._runs = Counter[str]()
        # The skipped runs recorded in this minute, each as (trigger, minute of the event).
        self._noted = set[tuple[str | None, int]]()

    async def run(self) -> None:
        """Follow the log until cancelled."""
        await every(ROUND_S, self.round, "round of the follower of events")

    async def round(self) -> None:
        """Make deliveries of all new entries."""
        while await self._take_page():
            pass

    async def _take_page(self) -> bool:
        """Make the deliveries of the next entries; return False when there are none."""
        after, newest = await log_position(self._store, self._reader, LogFollower.EVENTS)
        if newest <= after:
            return False
        try:
            last = min(newest, after + ENTRIES_OF_ROW * self._rows)
            found, last = await self._made(after, last)
            made, skipped = await self._bounded(found)
            now_ms = self._now_ms()
            await self._store.follow(made, skipped, after=after, last=last, now_ms=now_ms)
        except ServiceError:  # a page with very many deliveries may take too long
            self._rows = max(1, self._rows // 2)
            self._noted.clear()  # its skipped runs may not be recorded
            raise
        self._rows = min(2 * self._rows, ROWS_MAX)
        return True

    async def _made(self, after: int, last: int) -> tuple[list[Delivery], int]:
        """Return deliveries of the entries after `after`, and the id of the last entry covered.

        The covered entries end at `last`, or earlier if the page is full.
        """
        entries = await entries_of_subscribers(
            self._reader, after=after, last=last, most=self._rows
        )
        if len(entries) >= self._rows:
            last = entries[-1]["audit_id"]
        made = [
            _of_owner("publish", one, min(END_EVENTS & {*one["event_types"]}), one["url"])
            for one in await ended_publishes(self._reader, after=after, last=last)
        ]
        if entries:
            owners = {one["owner_did"] for one in entries}
            found = await subscribers(self._reader, owners)
            pairs, refused = await asyncio.to_thread(_pairs, entries, found)
            ids = {one.entry["audit_id"] for one in pairs if one.subscriber["kind"] == "trigger"}
            bodies = await entry_rows(self._reader, ids) if ids else {}
            made += await asyncio.to_thread(self._for_subscribers, pairs, bodies)
            made += [_refused(one) for one in refused]
        return made, last

    def _for_subscribers(
        self, pairs: Iterable[Pair], bodies: Mapping[int, RowDict]
    ) -> list[Delivery]:
        """Return the deliveries to webhooks, and the runs of triggers whose filter matches."""
        minute = self._now_ms() // MINUTE_MS
        if minute != self._minute:
            self._minute, self._runs, self._noted = minute, Counter(), set()
        events = {one: read_json(row["body"])["payload"]["events"] for one, row in bodies.items()}
        made = []
        for pair in pairs:
            entry, subscriber, event_type = pair
            kind, one, config = subscriber["kind"], subscriber["id"], subscriber["config"]
            if kind == "webhook":
                most = UNDELIVERED_MAX // subscriber["siblings"]
                # Events of other payers' workflows may use at most half of this limit.
                most = most // 2 if entry["is_others"] else most
                made.append(Delivery(entry, event_type, kind, one, most))
            elif first_match(events[entry["audit_id"]], event_type, config.get("filter") or {}):
                self._runs[one] += 1
                is_started = self._runs[one] <= config["maxRunsPerMinute"]
                made.append(_run(pair) if is_started else _refused(pair))
        return made

    async def _bounded(self, made: Sequence[Delivery]) -> tuple[list[RowDict], Counter[str]]:
        """Leave out the deliveries of targets that have too many pending deliveries.

        For each trigger, one skipped run per minute is stored instead.

        Returns: the rows to store, and the number of left-out deliveries by target.
        """
        new, skipped = Counter(one.target_id for one in made), Counter[str]()
        most = dict[str, int]()
        for one in made:
            most[one.target_id] = min(one.most, most.get(one.target_id, one.most))
        crowded = [
            one for one in new if self._pending.get(one, UNDELIVERED_MAX) + new[one] > most[one]
        ]
        for at in range(0, len(crowded), COUNTED_MAX):
            some = crowded[at : at + COUNTED_MAX]
            self._pending |= await self._store.pending(some, most=UNDELIVERED_MAX)
        kept = []
        for one in made:
            is_refused = one.error is not None or self._pending[one.target_id] >= one.most
            if is_refused and one.kind != "trigger":
                skipped[one.target_id] += 1
                continue
            if is_refused:
                note = (one.address, one.entry["created_ms"] // MINUTE_MS)
                if note in self._noted:
                    continue
                self._noted.add(note)
            self._pending[one.target_id] += 1
            kept.append(_row(one._replace(error=RATE) if is_refused else one))
        return kept, skipped


def _pairs(
    entries: Iterable[RowDict], subscribers: Iterable[RowDict]
) -> tuple[list[Pair], list[Pair]]:
    """Return the pairs of entries and matching subscribers, and separately the refused pairs.

    When an owner exceeds `PAIRS_OF_OWNER_MAX`, further pairs of its triggers are left out. For each
    of these triggers, the last pair that was left out is returned as refused.
    """
    of_type = defaultdict[tuple[str, str], list[RowDict]](list)
    for one in subscribers:
        for event_type in one["events"]:
            of_type[one["owner_did"], event_type].append(one)
    pairs, refused, of_owner = list[Pair](), dict[str, Pair](), Counter[str]()
    for entry in entries:
        owner_did, types = entry["owner_did"], entry["event_types"]
        found: dict[str, Pair] = {}
        for asked, event_type in ((ALL_EVENTS, types[0]), *((one, one) for one in types)):
            for one in of_type.get((owner_did, asked), ()):
                if entry["audit_id"] > one["after_id"]:
                    found.setdefault(one["id"], Pair(entry, one, event_type))
        for pair in found.values():
            of_owner[owner_did] += pair.subscriber["kind"] == "trigger"
            if pair.subscriber["kind"] == "trigger" and of_owner[owner_did] > PAIRS_OF_OWNER_MAX:
                refused[pair.subscriber["id"]] = pair
            else:
                pairs.append(pair)
    return pairs, list(refused.values())


def _run(pair: Pair) -> Delivery:
    return _of_owner("trigger", pair.entry, pair.event_type, pair.subscriber["id"])


def _refused(pair: Pair) -> Delivery:
    return _run(pair)._replace(error=RATE)


def _of_owner(kind: str, entry: RowDict, event_type: str, address: str) -> Delivery:
    """Return a delivery whose target is all publishes, or all event triggers, of the owner."""
    target_id = str(uuid5(NAMESPACE_URL, f"{kind} {entry['owner_did']}"))
    return Delivery(entry, event_type, kind, target_id, UNDELIVERED_MAX, address)


def _row(made: Delivery) -> RowDict:
    """Return the row of a new delivery.

    The deliveries of one line are processed one after the other. All deliveries about one workflow
    to one webhook form a line, and so do all runs of one trigger. Any other delivery is a line of
    its own.
    """
    fields = made._asdict()
    entry = fields.pop("entry")
    one = uuid7(at_ms=entry["created_ms"], entropy=os.urandom(10))
    line = {"webhook": entry["workflow_id"], "trigger": made.address}.get(made.kind)
    return {**entry, **fields, "id": one, "line": line or one}
