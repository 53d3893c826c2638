"""Deliveries to webhooks: the sender over the real Postgres and real receivers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast
from uuid import NAMESPACE_URL, uuid5

import psycopg
import pytest
from msgspec.structs import replace
from standardwebhooks import Webhook

from actors.cluster.due import event_follower
from actors.cluster.due.event_deliveries import (
    LEASE_MS,
    PLACES_OF_OWNER,
    PLACES_OF_TARGET,
    EventDeliveries,
)
from actors.cluster.due.event_follower import UNDELIVERED_MAX, EventFollower
from actors.cluster.due.event_triggers import EventRuns
from actors.cluster.due.run_starter import RunStarter
from actors.cluster.due.webhook_deliveries import WebhookSender
from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.trust.deployment_keys import NONCE_BYTES, KeyPurpose, seal
from core.trust.webhook_messages import publish_secrets, webhook_secret
from core.workflow.transitions import WorkflowStatus
from ledger.features.audit_log import newest_entry_id
from ledger.features.webhooks import (
    DAY_MS,
    KEPT_MS,
    DeliveryStore,
    Target,
    WebhookStore,
    delivery_rows,
    webhook_row,
)
from ledger.reads.reader import LedgerReader
from ledger.writer.store import LedgerStore
from tests.conftest import Database
from tests.ledger.making import (
    AT,
    CREDIT,
    PAYER,
    Flow,
    api_key,
    card,
    deposit,
    new_id,
    open_with_member,
    revoke,
)  # fmt: skip
from tests.platform.webhook_receiver import Message, Receiver, webhook_receiver

KEY = b"k" * 32
OWNER = "did:test:owner"
PATIENCE_S = 60.0


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with webhook_receiver() as made:
        yield made


@dataclass
class Scene:
    """A ledger, the sender, and what the tests see of both."""

    database: Database
    settings: Settings
    store: LedgerStore
    reader: LedgerReader
    webhooks: WebhookStore
    follower: EventFollower
    deliveries: DeliveryStore
    sender: EventDeliveries
    rows: psycopg.Connection[Any]

    async def webhook(self, url: str, *events: str, owner: str = PAYER, **made_with: Any) -> str:
        """Make a webhook whose secret is KEY, and return its id."""
        keys = self.settings.deployment_keys
        secrets = seal(
            webhook_secret(KEY), keys, os.urandom(NONCE_BYTES), KeyPurpose.SIGNING_SECRET
        )
        columns = {"id": new_id(), "url": url, "events": list(events), "secrets": secrets}
        columns |= {"after_id": await newest_entry_id(self.reader), "created_ms": AT}
        made = await self.webhooks.add(owner, {**columns, **made_with})
        assert made is not None
        return str(made["id"])

    async def run(self, count: int = 1, *, url: str | None = None) -> list[str]:
        """Let workflows run and end: three entries of each; return their ids."""
        flows = [Flow() for _ in range(count)]
        for flow in flows:
            steps = [replace(flow.publish(), webhook_url=url), flow.pay(CREDIT), flow.end()]
            assert {one.error for one in await self.store.commit(steps, AT)} == {None}
        await self.follower.round()
        return [flow.id for flow in flows]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Send what is due until the condition holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await self.sender.poll()
                await self.sender.take_due()
                await asyncio.sleep(0.005)

    async def settled(self, *others: EventDeliveries) -> None:
        """Send until nothing is under way, and nothing is due of what does not rest."""
        await self.sender.check_credentials()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for one in (self.sender, *others):
                    await one.poll()
                    await one.take_due()
                if not any(one._trying for one in (self.sender, *others)) and not self.due():
                    return
                await asyncio.sleep(0.005)

    def due(self) -> int:
        """Return how many deliveries may be sent: the first due one of each line.

        Those of webhooks that are paused or rest are left out.
        """
        where = (
            "status = 'pending' AND next_ms <= %s AND NOT target_id = ANY (%s::uuid[])"
            " AND NOT EXISTS (SELECT 1 FROM callboard.webhook w"
            " WHERE w.id = target_id AND w.pause_reason IS NOT NULL)"
            " AND NOT EXISTS (SELECT 1 FROM callboard.event_delivery e WHERE e.status = 'pending'"
            " AND (e.target_id, e.line) = (d.target_id, d.line) AND e.audit_id < d.audit_id)"
        )
        resting = list(self.sender._rests)
        return int(self.value("count(*)", where, self.now(), resting))

    def rested(self) -> None:
        """Let the rest of all webhooks be over."""
        self.sender._rests.clear()

    def now(self) -> int:
        return self.sender._now_ms()

    def value(self, what: str, where: str = "true", *values: Any) -> Any:
        query = f"SELECT {what} FROM callboard.event_delivery d WHERE {where}"
        return self.rows.execute(query, values).fetchone()[0]  # type: ignore[arg-type,index]

    def fill(self, target_id: str, count: int) -> None:
        """Add deliveries that are not due."""
        fill = (
            "INSERT INTO callboard.event_delivery (id, target_id, kind, line, owner_did,"
            " event_type, next_ms, ends_ms, created_ms) SELECT gen_random_uuid(), %s, 'webhook',"
            " gen_random_uuid(), '', '', 2e15, 2e15, 0 FROM generate_series(1, %s)"
        )
        self.rows.execute(fill, [target_id, count])

    def make_due(self) -> None:
        """Let the pause before the next attempts be over."""
        self.rows.execute("UPDATE callboard.event_delivery SET next_ms = created_ms")

    async def reason(self, webhook_id: str) -> str | None:
        """Return why a webhook is paused."""
        found = await webhook_row(self.reader, webhook_id)
        assert found is not None
        return found["pause_reason"]


def taker(
    settings: Settings, reader: LedgerReader, deliveries: DeliveryStore, **limits: float
) -> EventDeliveries:
    """Make a taker of deliveries; there are no event triggers."""
    runs = EventRuns(settings, reader, cast(RunStarter, None))
    sender = WebhookSender(settings, reader, **limits)
    return EventDeliveries(reader, deliveries, sender, runs)


@pytest.fixture
async def scene(database: Database) -> AsyncIterator[Scene]:
    store = await open_with_member(database.service_url, micro=1_000 * CREDIT)
    await store.commit([card(owner_did=OWNER)], AT)
    settings = Settings(database_url=database.service_url, deployment_key="11" * 32)
    webhooks, deliveries = WebhookStore(database.service_url), DeliveryStore(database.service_url)
    async with LedgerReader(database.service_url, pool_size=2) as reader:
        follower = EventFollower(reader, deliveries)
        sender = taker(settings, reader, deliveries)
        with psycopg.connect(database.superuser_url, autocommit=True) as rows:
            made = Scene(
                database,
                settings,
                store,
                reader,
                webhooks,
                follower,
                deliveries,
                sender,
                rows,
            )
            yield made
        await made.sender.close()
    await deliveries.close()
    await webhooks.close()
    await store.close()


def check_signature(message: Message, key: bytes = KEY) -> None:
    """Verify a signature by the package, and independently of it."""
    assert Webhook(webhook_secret(key)).verify(message.body, message.headers) == message.json
    signed = f"{message.id}.{message.headers['webhook-timestamp']}.".encode() + message.body
    digest = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert f"v1,{digest}" in message.headers["webhook-signature"].split(" ")


async def test_each_party_is_sent_what_it_asked_for_and_nobody_else_anything(
    scene: Scene, receiver: Receiver
) -> None:
    await scene.webhook(f"{receiver.url}/ends", "workflow.finished", "agent.registered")
    await scene.webhook(f"{receiver.url}/all", "*")
    await scene.webhook(f"{receiver.url}/agents", "*", owner=OWNER)
    await scene.webhook(f"{receiver.url}/strangers", "*", owner="did:test:stranger")
    await scene.run(2)
    await scene.webhook(f"{receiver.url}/later", "*")
    await scene.settled()
    types = {path: [one.json["type"] for one in receiver.at(path)] for path in ("/ends", "/agents")}
    assert types == {"/ends": ["workflow.finished"] * 2, "/agents": ["node.succeeded"] * 2}
    assert len(receiver.at("/all")) == 6
    assert not receiver.at("/strangers") and not receiver.at("/later")
    assert len({one.id for one in receiver.messages}) == len(receiver.messages)
    for message in receiver.messages:
        check_signature(message)
        entry = (await scene.reader.audit(limit=1, before_id=message.audit_id + 1))[0]
        shown = {**json.loads(entry["body"]), "hash": f"sha256:{bytes(entry['hash']).hex()}"}
        assert message.json["data"] == shown
        assert message.json["timestamp"] == shown["createdAt"]
        assert message.headers["content-type"] == "application/json"


async def test_receivers_that_hang_drip_fail_or_redirect_hold_up_no_other_and_lose_nothing(
    scene: Scene, receiver: Receiver
) -> None:
    bad = ("hang", "hang", "drip", "500", "redirect", "hang")
    ids = [await scene.webhook(f"{receiver.url}/{path}", "workflow.finished") for path in bad]
    await scene.webhook(f"{receiver.url}/good", "node.succeeded", owner=OWNER)
    workflows = await scene.run(40)
    await scene.until(lambda: len(receiver.at("/good")) == 40)
    assert not receiver.gate.is_set()
    in_flight = scene.sender._places.of_target
    assert max(in_flight.values()) <= PLACES_OF_TARGET
    assert scene.sender._places.of_owner[PAYER] <= PLACES_OF_OWNER
    receiver.gate.set()

    def is_delivered() -> bool:
        scene.rested()
        return bool(scene.value("count(*)", "status = 'delivered'") == 40 + 4 * 40)

    await scene.until(is_delivered)
    assert len(receiver.at("/hang")) == len({one.id for one in receiver.at("/hang")}) == 3 * 40
    ended = [one.json["data"]["targetId"] for one in receiver.at("/drip")]
    assert sorted(ended) == sorted(workflows)
    await scene.settled()
    for number, error in ((3, "got status 500, expected 2xx"), (4, "got status 302, expected 2xx")):
        found = await delivery_rows(
            scene.reader, ids[number], status="pending", limit=99, offset=0, before=None
        )
        assert len(found) == 40
        assert {one["error"] for one in found} - {None} == {error}
    assert not receiver.at("/elsewhere")


async def test_an_attempt_ends_whatever_the_receiver_does(scene: Scene, receiver: Receiver) -> None:
    await scene.sender.close()
    scene.sender = taker(scene.settings, scene.reader, scene.deliveries, attempt_s=0.2)
    for path in ("drip", "hang", "large"):
        await scene.webhook(f"{receiver.url}/{path}", "workflow.finished")
    await scene.webhook("http://192.0.2.1/", "workflow.finished")
    await scene.run()
    await scene.settled()
    found = scene.rows.execute(
        "SELECT w.url, d.status, split_part(coalesce(d.error, ''), ':', 1)"
        " FROM callboard.event_delivery d JOIN callboard.webhook w ON w.id = d.target_id"
    ).fetchall()
    assert {url.rpartition("/")[2]: rest for url, *rest in found} == {
        "drip": ["pending", "TIMEOUT"],
        "hang": ["pending", "TIMEOUT"],
        "large": ["delivered", ""],
        "": ["pending", "DENIED"],
    }


async def test_those_of_a_workflow_wait_for_an_earlier_one_and_repeats_have_the_same_bytes(
    scene: Scene, receiver: Receiver
) -> None:
    await scene.webhook(f"{receiver.url}/line", "*")
    receiver.refused["/line"] = 1
    workflows = await scene.run(3)
    for _ in range(2):
        scene.rested()
        await scene.settled()
    waits = "status = 'pending' AND attempts > 0"
    refused_id, first = scene.value("id::text", waits), scene.value("workflow_id::text", waits)
    rest = [one for one in receiver.messages if one.id != refused_id]
    assert {one.json["data"].get("targetId") for one in rest} == {*workflows} - {first}
    assert len(rest) == 6
    waiting = "status = 'pending' AND workflow_id = %s"
    assert scene.value("count(*)", waiting, first) == 3
    scene.rows.execute(f"UPDATE callboard.event_delivery SET next_ms = 0 WHERE {waits}")
    scene.rested()
    await scene.settled()
    assert scene.value("count(*)", waiting, first) == 0
    again = [one for one in receiver.messages if one.id == refused_id]
    assert [one.body for one in again] == [again[0].body] * 2
    receiver.messages.remove(again[0])
    for workflow_id in workflows:
        came = [
            one.audit_id
            for one in receiver.messages
            if one.json["data"].get("targetId") == workflow_id
        ]
        assert came == sorted(came) and len(came) == 3


async def test_two_timekeepers_take_each_entry_and_each_delivery_once(
    scene: Scene, receiver: Receiver
) -> None:
    await scene.webhook(f"{receiver.url}/once", "*")
    deliveries = DeliveryStore(scene.database.service_url)
    other = taker(scene.settings, scene.reader, deliveries)
    follower = EventFollower(scene.reader, deliveries)
    for _ in range(5):
        await asyncio.gather(scene.run(4), follower.round())
        await asyncio.gather(scene.sender.poll(), other.poll())
        await asyncio.gather(*(each.take_due() for each in (scene.sender, other) * 3))
    await scene.settled(other)
    await other.close()
    await deliveries.close()
    assert len(receiver.messages) == len({one.audit_id for one in receiver.messages}) == 60


async def test_what_a_dead_timekeeper_had_claimed_comes_due_again(
    scene: Scene, receiver: Receiver
) -> None:
    hook = await scene.webhook(f"{receiver.url}/claimed", "workflow.finished")
    await scene.run()
    dead, now_ms = DeliveryStore(scene.database.service_url), scene.now()
    lease_ms = now_ms + LEASE_MS
    claim = {"most": 9, "now_ms": now_ms, "lease_ms": lease_ms}
    (one,) = await dead.claim(hook, **claim)
    assert await dead.claim(hook, **claim) == []
    assert await dead.due(after_ms=now_ms, now_ms=lease_ms - 1) == []
    due = await dead.due(after_ms=now_ms, now_ms=lease_ms)
    assert due == [Target(hook, "webhook", PAYER)] == await dead.waiting()
    scene.make_due()
    await scene.settled()
    # Its report comes too late.
    assert not await dead.end(one["id"], {"status": "failed"}, lease_ms=lease_ms)
    assert scene.value("status || attempts") == "delivered2"
    await dead.close()


async def test_a_full_webhook_leaves_events_off_counts_them_and_goes_on(scene: Scene) -> None:
    webhook_id = await scene.webhook("http://127.0.0.1:9/", "*")
    scene.fill(webhook_id, UNDELIVERED_MAX - 4)
    for undelivered, skipped in ((UNDELIVERED_MAX - 1, 0), (UNDELIVERED_MAX, 2)):
        await scene.run()
        found = await webhook_row(scene.reader, webhook_id)
        assert found is not None and found["pause_reason"] is None
        assert (scene.value("count(*)"), found["skipped_events"]) == (undelivered, skipped)
    scene.rows.execute("DELETE FROM callboard.event_delivery")
    await scene.run()
    assert scene.value("count(*)") == 3


async def test_the_webhooks_of_an_owner_share_its_undelivered_events(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also paused ones count: else each could be filled and paused in turn."""
    monkeypatch.setattr(event_follower, "UNDELIVERED_MAX", 12)
    ids = [await scene.webhook("http://127.0.0.1:9/", "*") for _ in range(3)]
    scene.rows.execute("UPDATE callboard.webhook SET pause_reason = '' WHERE id = %s", [ids[0]])
    await scene.webhook("http://127.0.0.1:9/", "*", owner=OWNER)
    await scene.run(5)
    for webhook_id in ids[1:]:
        assert scene.value("count(*)", "target_id = %s", webhook_id) == 4
    assert scene.value("count(*)", "owner_did = %s", OWNER) == 5


async def test_others_take_only_half_of_the_room_for_an_owners_events(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a stranger who uses an agent could keep its owner's own events off."""
    monkeypatch.setattr(event_follower, "UNDELIVERED_MAX", 6)
    webhook_id = await scene.webhook("http://127.0.0.1:9/", "*", owner=OWNER)
    await scene.run(9)
    assert scene.value("count(*)", "owner_did = %s", OWNER) == 3
    await scene.store.commit([deposit(1, owner_did=OWNER) for _ in range(9)], AT)
    await scene.follower.round()
    assert scene.value("count(*)", "event_type = 'ledger.deposited'") == 3
    found = await webhook_row(scene.reader, webhook_id)
    assert found is not None and found["skipped_events"] == 12


async def test_undelivered_messages_to_the_urls_of_a_payers_publishes_are_bounded(
    scene: Scene,
) -> None:
    """Each URL counts, however many there are, until its message has ended."""
    scene.fill(str(uuid5(NAMESPACE_URL, f"publish {PAYER}")), UNDELIVERED_MAX - 2)
    for number in range(4):
        await scene.run(url=f"http://127.0.0.1:9/?{number}")
    assert scene.value("count(*)") == UNDELIVERED_MAX
    assert scene.value("count(*)", "kind = 'publish'") == 2
    scene.rows.execute("DELETE FROM callboard.event_delivery WHERE kind = 'webhook'")
    await scene.run(2, url="http://127.0.0.1:9/")
    assert scene.value("count(*)") == 4


class SlowStore(DeliveryStore):
    """Its server ends a statement that stores more than three deliveries."""

    async def follow(
        self, made: Sequence[Mapping[str, Any]], *others: Any, **position: int
    ) -> None:
        if len(made) > 3:
            raise ServiceError(ErrorCode.OVERLOADED, "a statement took too long")
        await super().follow(made, *others, **position)


async def test_a_page_with_too_many_deliveries_is_taken_in_parts(scene: Scene) -> None:
    """Else it would be tried for ever, and nobody's events would be delivered."""
    await scene.webhook("http://127.0.0.1:9/", "*")
    flows = [Flow() for _ in range(4)]
    for flow in flows:
        assert {one.error for one in await scene.store.commit([flow.publish()], AT)} == {None}
    store = SlowStore(scene.database.service_url)
    follower = EventFollower(scene.reader, store)
    for _ in range(20):
        with suppress(ServiceError):
            await follower.round()
    assert scene.value("count(*)") == scene.value("count(DISTINCT audit_id)") == 4
    await store.close()


async def test_a_webhook_of_which_every_attempt_of_a_day_failed_pauses(
    scene: Scene, receiver: Receiver
) -> None:
    webhook_id = await scene.webhook(f"{receiver.url}/500", "workflow.finished")
    since = "UPDATE callboard.webhook SET failing_ms = failing_ms - %s"
    for shift_ms, reason in ((0, None), (DAY_MS - 60_000, None), (60_000, "every attempt")):
        await scene.run()
        scene.rows.execute(since, [shift_ms])
        scene.rested()
        await scene.settled()
        assert ((await scene.reason(webhook_id)) or "").startswith(reason or "")
        assert (await scene.reason(webhook_id) is None) == (reason is None)
    await scene.run()
    await scene.settled()
    assert len(receiver.messages) == 3  # a paused one is sent nothing


@pytest.mark.parametrize("is_rescued", [False, True])
async def test_a_success_ends_the_count_of_failures(
    scene: Scene, receiver: Receiver, is_rescued: bool
) -> None:
    webhook_id = await scene.webhook(f"{receiver.url}/x", "workflow.finished")
    receiver.refused["/x"] = 1
    for _ in range(1 + is_rescued):
        await scene.run()
        scene.rested()
        await scene.settled()
    found = await webhook_row(scene.reader, webhook_id)
    assert found is not None and (found["failing_ms"] is None) == is_rescued


CREDENTIALS: dict[str, tuple[dict[str, Any], str]] = {
    "expired": ({"expires_ms": 1}, "has expired"),
    "API key": ({"key_id": "ended"}, "API key"),
    "replaced key": ({"signed_key": "old"}, "does not speak"),
    "revoked": ({}, "is revoked"),
    "live": ({"key_id": "live", "expires_ms": 2**50}, ""),
}


@pytest.mark.parametrize(("made_with", "reason"), CREDENTIALS.values(), ids=CREDENTIALS)
async def test_a_webhook_ends_with_its_credential(
    scene: Scene, receiver: Receiver, made_with: dict[str, Any], reason: str
) -> None:
    webhook_id = await scene.webhook(f"{receiver.url}/x", "workflow.finished", **made_with)
    ended, live = api_key("ended", b"e" * 32), api_key("live", b"l" * 32)
    await scene.store.commit([ended, live], AT)
    scene.rows.execute("UPDATE callboard.api_key SET revoked_ms = 1 WHERE id = 'ended'")
    await scene.run()
    if reason == "is revoked":
        await scene.store.commit([revoke(PAYER)], AT)
    await scene.settled()
    assert reason in (await scene.reason(webhook_id) or "")
    assert len(receiver.messages) == (0 if reason else 1)


async def test_the_url_of_a_publish_is_told_the_end_signed_for_its_workflow(
    scene: Scene, receiver: Receiver
) -> None:
    await scene.run(2, url=f"{receiver.url}/publish")
    flow = Flow()
    cancel = flow.end(WorkflowStatus.CANCELLED)
    steps = [replace(flow.publish(), webhook_url=f"{receiver.url}/publish"), cancel]
    await scene.store.commit(steps, AT)
    await scene.run()
    await scene.settled()
    types = sorted(one.json["type"] for one in receiver.messages)
    assert types == ["workflow.cancelled", "workflow.finished", "workflow.finished"]
    for message in receiver.messages:
        workflow_id = message.json["data"]["targetId"]
        (secret,) = publish_secrets(scene.settings.deployment_keys, workflow_id)
        check_signature(message, base64.b64decode(secret.removeprefix("whsec_")))


async def test_all_targets_that_have_pending_deliveries_are_found(scene: Scene) -> None:
    """Whether they are due, and however many deliveries each has; a start looks for them."""
    targets = [new_id() for _ in range(5)]
    for count, one in enumerate(targets):
        scene.fill(one, count)
    waiting = await scene.deliveries.waiting()
    assert [one.id for one in waiting] == sorted(targets[1:])


async def test_a_deleted_webhook_is_sent_nothing(scene: Scene, receiver: Receiver) -> None:
    webhook_id = await scene.webhook(f"{receiver.url}/x", "*")
    await scene.run()
    await scene.webhooks.delete(webhook_id, now_ms=scene.now())
    await scene.run()
    await scene.settled()
    assert not receiver.messages
    assert scene.value("string_agg(status, ' ')") == "failed failed failed"


async def test_paused_webhooks_hold_up_no_other_and_go_on_when_they_are_enabled(
    scene: Scene, receiver: Receiver
) -> None:
    paused = await scene.webhook(f"{receiver.url}/paused", "*")
    await scene.webhook(f"{receiver.url}/x", "workflow.finished")
    await scene.run(3)
    pause = "UPDATE callboard.webhook SET pause_reason = %s WHERE id = %s"
    scene.rows.execute(pause, ["full", paused])
    await scene.until(lambda: len(receiver.messages) == 3)
    await scene.settled()
    scene.rows.execute("UPDATE callboard.event_delivery SET next_ms = 0 WHERE status = 'pending'")
    scene.rows.execute(pause, [None, paused])
    await scene.webhooks.resume(paused, now_ms=scene.now())
    await scene.settled()
    assert len(receiver.at("/paused")) == 9


async def test_a_delivery_that_is_sent_again_by_hand_holds_up_no_later_one(
    scene: Scene, receiver: Receiver
) -> None:
    """Goal: while the first of a workflow is sent again, and not yet taken, the others are sent."""
    await scene.webhook(f"{receiver.url}/x", "*")
    receiver.refused["/x"] = 1
    await scene.run()
    await scene.settled()
    assert scene.value("count(*)", "status = 'pending'") == 3
    first = scene.value("id::text", "attempts > 0")
    change = "UPDATE callboard.event_delivery SET {} WHERE id = %s"
    scene.rows.execute(change.format("status = 'failed'"), [first])  # type: ignore[arg-type]
    assert await scene.webhooks.redeliver(first, now_ms=scene.now()) is not None
    scene.rows.execute(change.format("next_ms = 2e15"), [first])  # type: ignore[arg-type]
    scene.rested()
    await scene.settled()
    found = scene.value("string_agg(status, ' ' ORDER BY audit_id)")
    assert found == "pending delivered delivered"


async def test_what_is_over_is_given_up_and_removed(scene: Scene, receiver: Receiver) -> None:
    webhook_id = await scene.webhook(f"{receiver.url}/500", "workflow.finished")
    await scene.run(2)
    hook = await webhook_row(scene.reader, webhook_id)
    assert hook is not None
    await scene.webhooks.change(hook, {"pause_reason": "it is disabled"})
    store, now_ms = DeliveryStore(scene.database.service_url), scene.now()
    await store.tidy(now_ms=now_ms + DAY_MS - 60_000)
    assert scene.value("string_agg(status, ' ')") == "pending pending"
    await store.tidy(now_ms=now_ms + DAY_MS + 60_000)
    assert scene.value("string_agg(status, ' ')") == "failed failed"
    assert "24 hours" in scene.value("max(error)")
    await store.tidy(now_ms=now_ms + DAY_MS + KEPT_MS)
    assert scene.value("count(*)") == 2
    await store.tidy(now_ms=now_ms + DAY_MS + KEPT_MS + 120_000)
    assert scene.value("count(*)") == 0
    await store.close()
    assert not receiver.messages


async def test_a_delivery_ends_when_the_next_attempt_would_come_too_late(
    scene: Scene, receiver: Receiver
) -> None:
    await scene.webhook(f"{receiver.url}/500", "workflow.finished")
    for left_ms, status in ((1_000, "failed"), (60_000, "pending")):
        await scene.run()
        ends = "UPDATE callboard.event_delivery SET ends_ms = %s WHERE attempts = 0"
        scene.rows.execute(ends, [scene.now() + left_ms])
        scene.rested()
        await scene.settled()
        assert scene.value("max(status)", "attempts = 1 AND status = %s", status) == status
