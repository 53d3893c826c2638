"""Processes due deliveries: sends them to webhooks, or starts runs of event triggers.

Theory of operation: a due delivery is leased, tried once, and the result is stored. If this process
dies, the lease expires and the delivery is tried again. Each running attempt takes a place; the
number of places is limited. The time that each owner's attempts take is summed. All owners whose
sum exceeds `LIGHT_S` together get at most half of the places. So a receiver that fails, hangs or is
slow delays mainly the deliveries of its owner. Some places are reserved for owners whose last
attempt was quick. New owners cannot take these places.
Reference: features.md (Webhooks, Triggers).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from actors.cluster.due.event_triggers import EventRuns
from actors.cluster.due.webhook_deliveries import ATTEMPT_S, WebhookSender, failure_of
from actors.process.loop_clock import SteadyTime, every
from federation.http_connection import HttpFailureKind
from ledger.features.webhooks import KEPT_MS, DeliveryStore, Target, ended_credentials, webhook_row
from ledger.reads.reader import LedgerReader, RowDict

log = logging.getLogger("callboard.events")

POLL_S: Final = 0.5
CREDENTIALS_S: Final = 1.0
TIDY_S: Final = 60.0
# Pause between two rounds of starting attempts.
_PAUSE_S: Final = 0.05
# A replica's clock may be this much behind when it sets `next_ms`.
_SLACK_MS: Final = 10_000
# The lease of a claimed delivery. It is longer than one attempt.
LEASE_MS: Final = 30_000
BACKOFF_MS: Final = (5_000, 30_000, 120_000, 600_000, 1_800_000, 3_600_000, 7_200_000)
# The pause of a webhook after its first failure, its second failure in a row, and each further one.
RESTS_MS: Final = BACKOFF_MS[:3]
_JITTER: Final = 0.1

# The most concurrent attempts: in total, per owner, and per target.
PLACES, PLACES_OF_OWNER, PLACES_OF_TARGET = 50, 8, 4
# An owner is heavy if its recent attempts took more than `LIGHT_S` in total. All heavy owners
# together get at most `PLACES_OF_HEAVY` places.
LIGHT_S: Final = 20.0
PLACES_OF_HEAVY: Final = 25
# The places reserved for quick owners. A quick owner's last attempt took at most `QUICK_S`.
PLACES_OF_QUICK, QUICK_S = 10, 1.0
# The most quick owners that are remembered.
QUICK_OWNERS_MAX: Final = 100_000


class Place(NamedTuple):
    """A place taken by one running attempt; `is_heavy`: the attempt's owner is heavy."""

    target: Target
    is_heavy: bool


@dataclass(slots=True)
class Places:
    """The taken places, and the time that the recent attempts of each owner took.

    An attempt is charged its timeout (`ATTEMPT_S`) when it begins. When it ends, the charge is
    corrected to the actual time.
    """

    taken: int = 0
    of_heavy: int = 0
    of_owner: Counter[str] = field(default_factory=Counter)
    of_target: Counter[str] = field(default_factory=Counter)
    spent_s: dict[str, float] = field(default_factory=dict)
    quick: set[str] = field(default_factory=set)

    def take(self, target: Target) -> Place | None:
        """Take a place for an attempt; return None if no place is free for its target."""
        owner_did = target.owner_did
        spent_s = self.spent_s.get(owner_did, 0) + ATTEMPT_S
        place = Place(target, is_heavy=spent_s > LIGHT_S)
        if (
            self.taken >= PLACES - (0 if owner_did in self.quick else PLACES_OF_QUICK)
            or self.of_owner[owner_did] >= PLACES_OF_OWNER
            or self.of_target[target.id] >= PLACES_OF_TARGET
            or (place.is_heavy and self.of_heavy >= PLACES_OF_HEAVY)
        ):
            return None
        self.spent_s[owner_did] = spent_s
        self._add(place, 1)
        return place

    def give_back(self, place: Place, took_s: float) -> None:
        """Free the place of an attempt that took `took_s` seconds; 0: no attempt was made."""
        owner_did = place.target.owner_did
        self.spent_s[owner_did] = max(0, self.spent_s.get(owner_did, 0) - ATTEMPT_S + took_s)
        if took_s > QUICK_S:
            self.quick.discard(owner_did)
        elif took_s > 0 and len(self.quick) < QUICK_OWNERS_MAX:
            self.quick.add(owner_did)
        self._add(place, -1)

    def in_turn(self, targets: Iterable[Target]) -> list[Target]:
        """Return targets sorted by the counted time of their owners, shortest first."""
        return sorted(targets, key=lambda one: self.spent_s.get(one.owner_did, 0))

    def forget(self) -> None:
        """Halve the counted time of each owner, so that old attempts count less."""
        self.spent_s = {one: spent / 2 for one, spent in self.spent_s.items() if spent > 0.1}

    def _add(self, place: Place, count: int) -> None:
        self.taken += count
        self.of_heavy += count if place.is_heavy else 0
        self.of_owner[place.target.owner_did] += count
        self.of_target[place.target.id] += count
        self.of_owner, self.of_target = +self.of_owner, +self.of_target


def backoff_ms(attempts: int, *, jitter: float) -> int:
    """Return the pause before the next attempt, milliseconds.

    Args:
        attempts: the number of failed attempts, 1 or more.
        jitter: a random number from 0 to 1.
    """
    return int(BACKOFF_MS[min(attempts, len(BACKOFF_MS)) - 1] * (1 + _JITTER * jitter))


class EventDeliveries:
    """Processes due deliveries; must be created inside its event loop.

    Args:
        reader: reads committed rows.
        store: reads and writes the deliveries.
        sender: sends deliveries to webhooks.
        runs: starts runs of event triggers.
    """

    def __init__(
        self, reader: LedgerReader, store: DeliveryStore, sender: WebhookSender, runs: EventRuns
    ) -> None:
        self._reader = reader
        self._store = store
        self._sender = sender
        self._runs = runs
        self._now_ms = SteadyTime().now_ms
        self._places = Places()
        self._looked_ms = 0
        # `_due`: the targets that may have a due delivery. `_rests`: by failing webhook, the number
        # of failures in a row and the end of the pause.
        self._due: dict[Target, None] = {}
        self._rests: dict[str, tuple[int, int]] = {}
        self._trying: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Find due deliveries, process them and remove old ones, until cancelled."""
        await asyncio.gather(
            every(POLL_S, self.poll, "look for due deliveries"),
            every(_PAUSE_S, self.take_due, "taking of due deliveries"),
            every(CREDENTIALS_S, self.check_credentials, "check of credentials of webhooks"),
            every(TIDY_S, self.tidy, "tidying of deliveries"),
        )

    async def close(self) -> None:
        """Cancel all attempts."""
        for task in self._trying:
            task.cancel()
        await self._sender.close()

    async def poll(self) -> None:
        """Add the targets of deliveries that came due since the last call of `look`.

        The first call, and the first after `tidy`, adds the targets of all pending deliveries.
        """
        now_ms, after_ms = self._now_ms(), self._looked_ms - _SLACK_MS
        if self._looked_ms == 0:
            found = await self._store.waiting()
        else:
            found = await self._store.due(after_ms=after_ms, now_ms=now_ms)
        self._due.update(dict.fromkeys(found))
        self._looked_ms = now_ms

    async def check_credentials(self) -> None:
        """Pause the webhooks whose credential has expired or was revoked."""
        if ended := await ended_credentials(self._reader, now_ms=self._now_ms()):
            await self._store.pause(ended)

    async def tidy(self) -> None:
        """Remove old deliveries and halve the counted times; the next `look` reads all targets."""
        now_ms = self._now_ms()
        self._places.forget()
        self._rests = {
            one: rest for one, rest in self._rests.items() if rest[1] > now_ms - RESTS_MS[-1]
        }
        self._looked_ms = 0
        await self._store.tidy(now_ms=now_ms)

    async def take_due(self) -> None:
        """Begin due attempts while places are free."""
        now_ms = self._now_ms()
        for target in self._places.in_turn(self._due):
            _, until_ms = self._rests.get(target.id, (0, 0))
            places: list[Place] = []
            while until_ms <= now_ms and (place := self._places.take(target)):
                places.append(place)
            if places:
                await self._begin(target, places)

    async def _begin(self, target: Target, places: list[Place]) -> None:
        """Claim deliveries of a target, at most one per place, and begin the attempts."""
        self._due.pop(target, None)
        try:
            webhook = None
            if target.kind == "webhook":
                webhook = await webhook_row(self._reader, target.id)
                if webhook is None or webhook["pause_reason"] is not None:
                    return
            now_ms = self._now_ms()
            lease_ms = now_ms + LEASE_MS
            for row in await self._store.claim(
                target.id, most=len(places), now_ms=now_ms, lease_ms=lease_ms
            ):
                attempt = self._attempt(places.pop(), row, webhook, lease_ms)
                task = asyncio.create_task(attempt)
                self._trying.add(task)
                task.add_done_callback(self._trying.discard)
        finally:
            for place in places:
                self._places.give_back(place, 0)

    async def _attempt(
        self, place: Place, row: RowDict, webhook: RowDict | None, lease_ms: int
    ) -> None:
        """Try a delivery once and store the result."""
        target, began_ms = place.target, self._now_ms()
        try:
            status, is_tried = None, True
            if target.kind == "trigger":
                error = await self._runs.start(row, now_ms=began_ms)
            else:
                outcome = await self._sender.send(row, webhook)
                error, status = failure_of(outcome), outcome.status or None
                is_tried = getattr(outcome, "kind", None) is not HttpFailureKind.NOT_TRIED
            now_ms = self._now_ms()
            changes: RowDict = {"http_status": status, "error": error}
            # Later runs of the trigger wait for this run, so it is retried after about 2 minutes
            # at the latest.
            attempts = min(row["attempts"], 3) if target.kind == "trigger" else row["attempts"]
            next_ms = now_ms + backoff_ms(attempts, jitter=random.random())
            if error is not None and (target.kind == "trigger" or next_ms < row["ends_ms"]):
                changes["next_ms"] = next_ms
            else:
                # A trigger's delivery is removed soon: the run's own record remains.
                kept_ms = 0 if target.kind == "trigger" else KEPT_MS
                changes["status"] = "delivered" if error is None else "failed"
                changes |= {"ended_ms": now_ms, "ends_ms": now_ms + kept_ms}
            is_stored = await self._store.end(row["id"], changes, lease_ms=lease_ms)
            if target.kind == "webhook" and is_stored and is_tried:
                await self._note(target, is_failed=error is not None, now_ms=now_ms)
        except Exception:  # the edge of the task: the delivery comes due again when its lease ends
            log.exception("an attempt was not stored delivery=%s", row["id"])
        finally:
            self._places.give_back(place, (self._now_ms() - began_ms) / 1_000)
            self._due[target] = None

    async def _note(self, target: Target, *, is_failed: bool, now_ms: int) -> None:
        """Store the result of an attempt. A failure starts a pause, unless a pause still runs."""
        failures, until_ms = self._rests.get(target.id, (0, 0))
        if not is_failed:
            self._rests.pop(target.id, None)
        elif until_ms <= now_ms:
            rest_ms = RESTS_MS[min(failures, len(RESTS_MS) - 1)]
            self._rests[target.id] = (failures + 1, now_ms + rest_ms)
        await self._store.note(target.id, is_failed=is_failed, now_ms=now_ms)
