"""Runs of event triggers: no event is lost or doubled over restarts and refusals.

The starter stands for owners without room; all else is real. Reference: features.md (Triggers).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import psycopg
import pytest
import sqlalchemy as sql

from actors.cluster.due import event_follower
from actors.cluster.due.event_deliveries import EventDeliveries
from actors.cluster.due.event_follower import EventFollower
from actors.cluster.due.event_triggers import EventRuns
from actors.cluster.due.run_starter import Cause, RunStarter, failed_note
from actors.cluster.due.webhook_deliveries import WebhookSender
from core.errors import ErrorCode, ServiceError
from core.ids import uuid7
from core.records.statuses import TriggerKind
from core.settings import Settings
from ledger.features.audit_log import newest_entry_id
from ledger.features.triggers import REFUSALS_MAX, run_rows, trigger_row
from ledger.features.webhooks import DeliveryStore
from ledger.features.workflow_commands import (
    ChangeTrigger,
    CreateTrigger,
    NoteRun,
    TriggerRun,
    TriggerTerms,
)
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.making import AT, PAYER, deposit, new_id, new_key, open_store

OTHER = "did:net:other"
POSITION = sql.text("SELECT audit_id FROM callboard.log_position WHERE reader = 'events'")
PATIENCE_S = 60.0


@dataclass
class Starter:
    """Takes what it is given, or leaves the runs of some triggers due; stores the notes."""

    store: LedgerStore
    full_for: set[str] = field(default_factory=set)
    taken: list[tuple[str, str]] = field(default_factory=list)
    notes: list[NoteRun] = field(default_factory=list)

    def new_ids(self) -> tuple[str, str]:
        made = (uuid7(at_ms=AT, entropy=new_id().encode()[-10:]) for _ in range(2))
        return cast(tuple[str, str], tuple(made))

    async def take(self, causes: Sequence[Cause]) -> list[TriggerRun]:
        left = []
        for run, act in causes:
            if isinstance(act, NoteRun):
                self.notes.append(act)
                await self.store.commit([act], AT)
            elif run.trigger_id in self.full_for:
                left.append(run)
            else:
                self.taken.append((run.trigger_id, run.key))
        return left


def event_trigger(owner_did: str = PAYER, **config: Any) -> CreateTrigger:
    given = {"eventType": "ledger.deposited", "filter": {}, "maxRunsPerMinute": 60, **config}
    manifest_json = '{"nodes":{"a":{"capabilityId":"cap.x"}}}'
    return CreateTrigger(
        key=new_key(), actor_did=owner_did, trigger_id=new_id(), kind=TriggerKind.EVENT,
        terms=TriggerTerms(name="n", manifest_json=manifest_json, config=given),
    )  # fmt: skip


@dataclass
class Scene:
    """A ledger with triggers, and how often a timekeeper starts."""

    database: Database
    store: LedgerStore
    starter: Starter
    reader: LedgerReader
    deliveries: DeliveryStore

    async def timekeeper(self) -> None:
        """Start a timekeeper that knows what is stored alone; let it do all that is due."""
        settings = Settings(database_url=self.database.service_url)
        runs = EventRuns(settings, self.reader, cast(RunStarter, self.starter))
        sender = WebhookSender(settings, self.reader)
        await EventFollower(self.reader, self.deliveries).round()
        taker = EventDeliveries(self.reader, self.deliveries, sender, runs)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await taker.poll()
                await taker.take_due()
                if not taker._due and not taker._trying:
                    break
                await asyncio.sleep(0.005)
        await taker.close()

    async def commit(self, *commands: Any) -> int:
        """Commit; return the id of the newest entry."""
        for outcome in await self.store.commit(list(commands), AT):
            assert outcome.error is None, outcome
        return await newest_entry_id(self.reader)

    async def position(self) -> int:
        (row,) = await self.reader.rows(POSITION)
        return int(row["audit_id"])

    def change(self, values: str) -> None:
        """Change the pending deliveries."""
        with psycopg.connect(self.database.superuser_url, autocommit=True) as rows:
            change = f"UPDATE callboard.event_delivery SET {values} WHERE status = 'pending'"
            rows.execute(change)  # type: ignore[arg-type]

    def pause_over(self) -> None:
        """Let the pauses before the next attempts be over."""
        self.change("next_ms = 0")

    async def noted(self, trigger_id: str) -> list[tuple[str, str]]:
        """Return the keys of the causes that did not run, with the reasons."""
        rows = await run_rows(self.reader, trigger_id, limit=99, offset=0, before_audit_id=None)
        return [(row["key"], row["reason"]) for row in reversed(rows)]


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[Scene]:
    store = await open_store(database.service_url)
    deliveries = DeliveryStore(database.service_url)
    async with LedgerReader(database.service_url, pool_size=2) as reader:
        yield Scene(database, store, Starter(store), reader, deliveries)
    await deliveries.close()
    await store.close()


async def test_an_event_that_waits_for_room_is_started_once_over_restarts(
    database: Database,
) -> None:
    """Goal: others' events go on meanwhile, and nothing counts as a refusal."""
    async with opened(database) as scene:
        first, other = event_trigger(), event_trigger(OTHER)
        await scene.commit(first, other)
        scene.starter.full_for = {first.trigger_id}
        waits = [await scene.commit(deposit(amount)) for amount in range(1, 21)]
        newest = await scene.commit(deposit(5, owner_did=OTHER))
        for _ in range(2):
            await scene.timekeeper()
            scene.pause_over()
        assert scene.starter.taken == [(other.trigger_id, str(newest))]
        assert await scene.position() == newest
        scene.starter.full_for = set()
        scene.starter.taken.clear()
        await scene.timekeeper()
        assert scene.starter.taken == [(first.trigger_id, str(number)) for number in waits]
        scene.pause_over()
        await scene.timekeeper()
        assert len(scene.starter.taken) == len(waits)
        assert scene.starter.notes == []
        row = await trigger_row(scene.reader, first.trigger_id)
        assert row is not None and (row["status"], row["refusals"]) == ("active", 0)


@pytest.mark.parametrize("looked_at", [1, 16])
async def test_pages_of_entries_leave_nothing_out(
    database: Database, monkeypatch: pytest.MonkeyPatch, looked_at: int
) -> None:
    monkeypatch.setattr(event_follower, "ROWS_MAX", 3)
    monkeypatch.setattr(event_follower, "ENTRIES_OF_ROW", looked_at)
    async with opened(database) as scene:
        wanted = event_trigger(filter={"amountCredits": ["0.000007", "0.000008"]})
        three = [event_trigger(), event_trigger(), wanted]
        await scene.commit(*three)
        before = await scene.commit(deposit(1))
        last = [await scene.commit(deposit(amount)) for amount in (6, 7, 8)][-1]
        await scene.timekeeper()
        expected = {
            (one.trigger_id, str(entry)) for one in three[:2] for entry in range(before, last + 1)
        }
        found = set(scene.starter.taken)
        assert expected <= found
        assert len(found) == len(scene.starter.taken)
        assert {key for one, key in found - expected} == {str(last - 1), str(last)}


async def test_what_is_refused_for_its_rate_is_noted_once_a_minute_over_restarts(
    database: Database,
) -> None:
    async with opened(database) as scene:
        one = event_trigger(maxRunsPerMinute=1)
        await scene.commit(one)
        entry = await scene.commit(deposit(1))
        await scene.commit(deposit(2))
        await scene.commit(deposit(3))
        await scene.timekeeper()
        (note,) = scene.starter.notes
        assert scene.starter.taken == [(one.trigger_id, str(entry))]
        assert await scene.noted(one.trigger_id) == [(f"rate:{AT // 60_000}", "rate")]
        assert note.reason == "rate"
        await scene.timekeeper()
        assert len(scene.starter.taken) == 1


@pytest.mark.parametrize("bound", ["PAIRS_OF_OWNER_MAX", "UNDELIVERED_MAX"])
async def test_an_owner_with_too_many_events_cannot_make_others_wait(
    database: Database, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """Goal: what is not taken is noted, and no refusal; the other's event starts its run."""
    monkeypatch.setattr(event_follower, bound, 2)
    async with opened(database) as scene:
        many, other = [event_trigger() for _ in range(3)], event_trigger(OTHER)
        await scene.commit(*many, other)
        await scene.commit(deposit(1))
        newest = await scene.commit(deposit(1, owner_did=OTHER))
        await scene.timekeeper()
        assert (other.trigger_id, str(newest)) in scene.starter.taken
        started = {trigger_id for trigger_id, _ in scene.starter.taken}
        for one in many:
            noted = [reason for _, reason in await scene.noted(one.trigger_id)]
            assert noted == ([] if one.trigger_id in started else ["rate"])
        assert len(started) == 3


async def test_a_skipped_run_is_one_delivery_a_minute_over_pages(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an owner with many triggers would have more due runs than the most."""
    monkeypatch.setattr(event_follower, "ROWS_MAX", 1)
    async with opened(database) as scene:
        await scene.commit(event_trigger(maxRunsPerMinute=1))
        for amount in range(1, 6):
            await scene.commit(deposit(amount))
        await EventFollower(scene.reader, scene.deliveries).round()
        with psycopg.connect(scene.database.superuser_url) as rows:
            made = rows.execute("SELECT error FROM callboard.event_delivery ORDER BY audit_id")
            assert made.fetchall() == [(None,), ("rate",)]


async def test_a_spent_budget_of_the_day_pauses_no_trigger(database: Database) -> None:
    async with opened(database) as scene:
        one = event_trigger()
        await scene.commit(one)
        spent = ServiceError(ErrorCode.QUOTA_EXCEEDED, "the budget of the day is spent")
        runs = [
            TriggerRun(trigger_id=one.trigger_id, key=str(number), version=1)
            for number in range(REFUSALS_MAX)
        ]
        await scene.commit(*(failed_note(run, spent) for run in runs))
        row = await trigger_row(scene.reader, one.trigger_id)
        assert row is not None and (row["status"], row["refusals"]) == ("active", 0)
        assert {reason for _, reason in await scene.noted(one.trigger_id)} == {"QUOTA_EXCEEDED"}


async def test_an_event_waits_while_its_trigger_is_paused_and_is_noted_at_last(
    database: Database,
) -> None:
    async with opened(database) as scene:
        one = event_trigger()
        await scene.commit(one)
        scene.starter.full_for = {one.trigger_id}
        entry = await scene.commit(deposit(1))
        await scene.timekeeper()
        change = ChangeTrigger(
            key=new_key(), actor_did=PAYER, trigger_id=one.trigger_id, version=1,
            changes=("enabled",),
            terms=TriggerTerms(name="n", config=one.terms.config, is_enabled=False),
        )  # fmt: skip
        await scene.commit(change)
        scene.starter.full_for = set()
        scene.pause_over()
        await scene.timekeeper()
        assert await scene.noted(one.trigger_id) == scene.starter.taken == []
        scene.change("next_ms = 0, ends_ms = 0")
        await scene.timekeeper()
        assert await scene.noted(one.trigger_id) == [(str(entry), "inactive")]


async def test_without_triggers_the_position_moves_on(database: Database) -> None:
    async with opened(database) as scene:
        newest = await scene.commit(deposit(1))
        await scene.timekeeper()
        assert await scene.position() == newest
        await scene.commit(event_trigger())
        await scene.timekeeper()
        assert scene.starter.taken == []
