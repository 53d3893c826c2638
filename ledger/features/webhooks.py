"""Webhooks, and deliveries of audit entries to webhooks, payers and event triggers.

Reference: features.md (Webhooks).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sql

from core.json_text import write_json
from core.records.api.triggers import TEST_EVENT
from ledger.connections.pools import OperationalPool
from ledger.features.audit_log import LogFollower
from ledger.reads.event_entries import END_EVENTS
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import event_delivery, typed, webhook

# Webhooks: owners create, change and read them. They are operational rows, without commands and
# audit entries, because an audited delivery would cause deliveries.

# Replicas check the maximum at the same time, so an owner may get one more webhook per additional
# replica.
WEBHOOKS_MAX: Final = 100
DAY_MS: Final = 24 * 3_600_000

_SHOWN: Final = (*event_delivery.c, event_delivery.c.target_id.label("webhook_id"))


class WebhookStore(OperationalPool):
    """The webhooks, written as the role `ops_writer`."""

    name, is_durable = "callboard-webhooks", True

    async def add(self, owner_did: str, columns: RowDict) -> RowDict | None:
        """Add a webhook and return it; None: its owner has `WEBHOOKS_MAX` already."""
        given = {"owner_did": owner_did, **columns}
        own = sql.select(sql.func.count()).where(webhook.c.owner_did == owner_did)
        values = [sql.literal(value, webhook.c[name].type) for name, value in given.items()]
        row = sql.select(*values).where(own.scalar_subquery() < WEBHOOKS_MAX)
        added = sql.insert(webhook).from_select(list(given), row)
        return await self.row(added.returning(*webhook.c))

    async def change(self, row: RowDict, changes: RowDict) -> RowDict | None:
        """Change columns of a webhook and return it; None: it was deleted, or has other secrets.

        Args:
            row: the webhook as it was read.
            changes: new values by column.
        """
        is_same = (webhook.c.id == str(row["id"]), webhook.c.secrets == bytes(row["secrets"]))
        changed = sql.update(webhook).where(*is_same).values(changes)
        return await self.row(changed.returning(*webhook.c))

    async def resume(self, webhook_id: str, *, now_ms: int) -> None:
        """Make the deliveries due again that came due while their webhook was paused."""
        waiting = (event_delivery.c.target_id == webhook_id, event_delivery.c.status == "pending")
        is_due = event_delivery.c.next_ms <= now_ms
        due = sql.update(event_delivery).where(*waiting, is_due).values(next_ms=now_ms)
        await self.rows(due)

    async def delete(self, webhook_id: str, *, now_ms: int) -> None:
        """Delete a webhook, and end its pending deliveries as failed."""
        await self.rows(sql.delete(webhook).where(webhook.c.id == webhook_id))
        left = (event_delivery.c.target_id == webhook_id, event_delivery.c.status == "pending")
        ended = {"status": "failed", "ended_ms": now_ms, "ends_ms": now_ms}
        await self.rows(sql.update(event_delivery).where(*left).values(ended))

    async def test(self, row: RowDict, delivery_id: str, *, now_ms: int) -> RowDict:
        """Create a test delivery and return it."""
        columns = {"id": delivery_id, "target_id": str(row["id"]), "owner_did": row["owner_did"]}
        columns |= {"kind": "webhook", "line": delivery_id, "event_type": TEST_EVENT}
        columns |= {"next_ms": now_ms, "ends_ms": now_ms + DAY_MS}
        added = sql.insert(event_delivery).values(**columns, created_ms=now_ms)
        made = await self.row(added.returning(*_SHOWN))
        assert made is not None
        return made

    async def redeliver(self, delivery_id: str, *, now_ms: int) -> RowDict | None:
        """Make an ended delivery due again and return it; None: it has not ended.

        The delivery gets its own queue (`line`), so that later deliveries do not wait for it.
        """
        ended = (event_delivery.c.id == delivery_id, event_delivery.c.status != "pending")
        again = {"status": "pending", "attempts": 0, "next_ms": now_ms, "ends_ms": now_ms + DAY_MS}
        again |= {"line": delivery_id, **dict.fromkeys(("http_status", "error", "ended_ms"))}
        return await self.row(
            sql.update(event_delivery).where(*ended).values(again).returning(*_SHOWN)
        )


async def webhook_row(reader: LedgerReader, webhook_id: str) -> RowDict | None:
    """Return a webhook, None if there is none."""
    return await reader.row(sql.select(webhook).where(webhook.c.id == webhook_id))


async def webhook_rows(reader: LedgerReader, *, after: str | None, **page: Any) -> list[RowDict]:
    """Return webhooks, oldest first.

    Args:
        after: only webhooks with an id after this one.
        page: `limit`, `offset`, and the filter `owner_did`.
    """
    return await reader.listed(sql.select(webhook), "id", after, **page)


async def delivery_row(reader: LedgerReader, webhook_id: str, delivery_id: str) -> RowDict | None:
    """Return a delivery of a webhook, None if there is none."""
    is_it = (event_delivery.c.id == delivery_id, event_delivery.c.target_id == webhook_id)
    return await reader.row(sql.select(*_SHOWN).where(*is_it))


async def delivery_rows(
    reader: LedgerReader, webhook_id: str, *, before: str | None, **page: Any
) -> list[RowDict]:
    """Return deliveries of a webhook, newest first.

    Args:
        before: only deliveries with an id before this one.
        page: `limit`, `offset`, and the filter `status`.
    """
    query = sql.select(*_SHOWN).where(event_delivery.c.target_id == webhook_id)
    return await reader.listed(query, "id", before, is_newest_first=True, **page)


# Deliveries of audit entries: created, claimed when due, ended and removed. Theory of operation.
# A delivery is a row for an audit entry and a target: a webhook, the publishes of a payer, or the
# event triggers of an owner. A process claims a due row by moving `next_ms` into the future, as a
# lease. If the process dies, the lease expires and the row is due again. The rows of one target and
# line form a queue: only the first pending row may be claimed.

KEPT_MS: Final = 7 * DAY_MS
# Maximum rows that one statement ends or removes.
_REMOVED_MAX: Final = 500

_NOW: Final = sql.bindparam("now", type_=sql.BigInteger)
# The audit entries to which the owner of an active webhook or event trigger is a party. A subquery
# finds them first, because the planner would otherwise scan the audit log to reach the limit.
_SEEN: Final = sql.text(
    """
    WITH found AS MATERIALIZED (
        SELECT o.owner_did, p.audit_id
        FROM (
            SELECT owner_did FROM callboard.webhook WHERE pause_reason IS NULL
            UNION
            SELECT owner_did FROM callboard.trigger WHERE kind = 'event' AND status = 'active'
        ) AS o CROSS JOIN LATERAL (
            SELECT audit_id FROM callboard.audit_party
            WHERE party = o.owner_did AND audit_id > :after AND audit_id <= :last OFFSET 0
        ) AS p
        ORDER BY p.audit_id FETCH FIRST (:most) ROWS WITH TIES
    )
    SELECT p.owner_did, e.id AS audit_id, e.workflow_id::text, e.event_types, e.created_ms,
        f.payer_did IS NOT NULL AND f.payer_did <> p.owner_did AS is_others
    FROM found AS p JOIN callboard.audit e ON e.id = p.audit_id
    LEFT JOIN callboard.workflow f ON f.id = e.workflow_id ORDER BY e.id
    """
).bindparams(*typed(bigint="after last most"))
_SUBSCRIBERS: Final = sql.text(
    """
    SELECT id::text, 'webhook' AS kind, owner_did, events, after_id, siblings,
        CAST(NULL AS json) AS config
    FROM (SELECT *, count(*) OVER (PARTITION BY owner_did) AS siblings
        FROM callboard.webhook WHERE owner_did = ANY (:owners)) AS w WHERE pause_reason IS NULL
    UNION ALL
    SELECT id::text, 'trigger', owner_did, ARRAY[config ->> 'eventType'], audit_id, 1, config
    FROM callboard.trigger
    WHERE kind = 'event' AND status = 'active' AND owner_did = ANY (:owners)
    """
)
_ENDS: Final = sql.text(
    """
    SELECT f.payer_did AS owner_did, f.webhook_url AS url, e.id AS audit_id, e.workflow_id::text,
        e.event_types, e.created_ms
    FROM callboard.audit e JOIN callboard.workflow f ON f.id = e.workflow_id
    WHERE e.id > :after AND e.id <= :last AND e.event_types && CAST(:ends AS text[])
        AND f.webhook_url IS NOT NULL
    """
).bindparams(*typed(bigint="after last"))
_ENTRIES: Final = sql.text(
    "SELECT e.id, e.body, e.hash, f.template_id::text FROM callboard.audit e"
    " LEFT JOIN callboard.workflow f ON f.id = e.workflow_id WHERE e.id = ANY (:ids)"
)
_PENDING: Final = sql.text(
    """
    SELECT t.id::text AS id, (SELECT count(*) FROM (
        SELECT FROM callboard.event_delivery d WHERE d.target_id = t.id AND d.status = 'pending'
        LIMIT :most) AS p) AS pending
    FROM unnest(CAST(:ids AS uuid[])) AS t (id)
    """
)
# Deliveries are inserted only if the position moves, so each entry creates its deliveries once.
_FOLLOW: Final = sql.text(
    f"""
    WITH moved AS (
        UPDATE callboard.log_position SET audit_id = :last
        WHERE reader = '{LogFollower.EVENTS}' AND audit_id = :after RETURNING 1
    ), counted AS (
        UPDATE callboard.webhook w SET skipped_events = skipped_events + CAST(s.value AS bigint)
        FROM moved, json_each_text(CAST(:skipped AS json)) AS s WHERE w.id = CAST(s.key AS uuid)
    )
    INSERT INTO callboard.event_delivery (id, target_id, kind, owner_did, address, event_type,
        audit_id, workflow_id, line, error, created_ms, next_ms, ends_ms)
    SELECT f.*, :now, :now + {DAY_MS}
    FROM moved, json_to_recordset(CAST(:made AS json)) AS f (id uuid, target_id uuid, kind text,
        owner_did text, address text, event_type text, audit_id bigint, workflow_id uuid, line uuid,
        error text, created_ms bigint)
    """
).bindparams(_NOW)
_DUE: Final = sql.text(
    "SELECT DISTINCT target_id::text AS id, kind, owner_did FROM callboard.event_delivery"
    " WHERE status = 'pending' AND next_ms > :after_ms AND next_ms <= :now"
).bindparams(*typed(bigint="now after_ms"))
# One index probe per target, however many deliveries it has.
_WAITING: Final = sql.text(
    """
    WITH RECURSIVE found AS (
        (SELECT target_id, kind, owner_did FROM callboard.event_delivery
        WHERE status = 'pending' ORDER BY target_id LIMIT 1)
        UNION ALL
        SELECT next.* FROM found CROSS JOIN LATERAL (
            SELECT d.target_id, d.kind, d.owner_did FROM callboard.event_delivery d
            WHERE d.status = 'pending' AND d.target_id > found.target_id
            ORDER BY d.target_id LIMIT 1) AS next
    )
    SELECT target_id::text AS id, kind, owner_did FROM found
    """
)
_CLAIM: Final = sql.text(
    """
    UPDATE callboard.event_delivery d SET next_ms = :lease_ms, attempts = attempts + 1
    FROM (
        SELECT first.id FROM (
            SELECT DISTINCT ON (line) id, next_ms, audit_id FROM callboard.event_delivery
            WHERE target_id = CAST(:target_id AS uuid) AND status = 'pending'
            ORDER BY line, audit_id
        ) AS first WHERE first.next_ms <= :now ORDER BY first.next_ms, first.audit_id LIMIT :most
    ) AS c WHERE d.id = c.id AND d.status = 'pending' AND d.next_ms <= :now
    RETURNING d.id::text AS id, d.target_id::text, d.owner_did, d.address, d.event_type, d.audit_id,
        d.workflow_id::text, d.error, d.attempts, d.created_ms, d.ends_ms
    """
).bindparams(_NOW)
_NOTE: Final = sql.text(
    f"""
    UPDATE callboard.webhook SET
        failing_ms = CASE WHEN :is_failed THEN coalesce(failing_ms, :now) END,
        pause_reason = CASE WHEN :is_failed AND failing_ms <= :now - {DAY_MS}
            THEN coalesce(pause_reason, 'every attempt of a day has failed') ELSE pause_reason END
    WHERE id = CAST(:id AS uuid) AND (:is_failed OR failing_ms IS NOT NULL)
    """
).bindparams(_NOW, sql.bindparam("is_failed", type_=sql.Boolean))
# An API key ends with its ancestors, and a DID's signature with the DID's key.
_ENDED: Final = sql.text(
    """
    SELECT w.id::text AS id, CASE
        WHEN w.expires_ms <= :now THEN 'the credential that it was made with has expired'
        WHEN w.key_id IS NOT NULL AND (k.id IS NULL OR k.revoked_ms IS NOT NULL)
            THEN 'the API key that it was made with has ended'
        WHEN w.signed_key IS NOT NULL AND NOT EXISTS (SELECT 1 FROM callboard.agent a
            WHERE a.did = w.owner_did AND a.public_key = w.signed_key AND (a.owner_did = a.did
                OR a.status = 'active' AND NOT EXISTS (
                    SELECT 1 FROM callboard.api_key o WHERE o.owner_did = a.did)))
            THEN 'the key that made it does not speak for the DID any more'
        WHEN NOT coalesce('admin' = ANY (k.scopes), false) AND EXISTS (
            SELECT 1 FROM callboard.revocation r WHERE r.did = w.owner_did
                AND r.ended_ms IS NULL AND coalesce(r.expires_ms > :now, true))
            THEN 'the DID that made it is revoked' END AS reason
    FROM callboard.webhook w LEFT JOIN callboard.api_key k ON k.id = w.key_id
    WHERE w.pause_reason IS NULL
    """
).bindparams(_NOW)
_PAUSE: Final = sql.text(
    "UPDATE callboard.webhook w SET pause_reason = p.reason"
    " FROM json_to_recordset(CAST(:found AS json)) AS p (id uuid, reason text)"
    " WHERE w.id = p.id AND w.pause_reason IS NULL"
)
# Deliveries that start runs do not fail by time, because a run must not be lost when an owner
# process is overloaded.
_GIVE_UP: Final = sql.text(
    f"""
    UPDATE callboard.event_delivery SET status = 'failed', ended_ms = :now,
        ends_ms = :now + {KEPT_MS}, error = coalesce(error, 'it could not be sent within 24 hours')
    WHERE id IN (SELECT id FROM callboard.event_delivery
        WHERE ends_ms <= :now AND status = 'pending' AND next_ms <= :now AND kind <> 'trigger'
        ORDER BY ends_ms LIMIT {_REMOVED_MAX}) AND status = 'pending' RETURNING 1
    """
).bindparams(_NOW)
_REMOVE_OLD: Final = sql.text(
    f"""
    DELETE FROM callboard.event_delivery WHERE id IN (SELECT id FROM callboard.event_delivery
        WHERE ends_ms <= :now AND status <> 'pending' ORDER BY ends_ms LIMIT {_REMOVED_MAX})
        AND status <> 'pending' RETURNING 1
    """
).bindparams(_NOW)


class Target(NamedTuple):
    """The receiver of deliveries: a webhook, a payer's publishes, or an owner's event triggers."""

    id: str
    kind: str
    owner_did: str


class DeliveryStore(OperationalPool):
    """The deliveries, written as the role `ops_writer`.

    The store has two connections, so that a page of new deliveries does not delay claims. Commits
    do not wait for the disk, so a crash of the database may undo the last statements. Their work is
    then repeated, and a delivery may be sent twice.
    """

    name, is_durable, size = "callboard-deliveries", False, 2

    async def follow(
        self,
        made: Sequence[Mapping[str, Any]],
        skipped: Mapping[str, int],
        *,
        after: int,
        last: int,
        now_ms: int,
    ) -> None:
        """Store deliveries and move the position, unless another timekeeper has moved it.

        Args:
            made: new deliveries.
            skipped: by webhook id, the number of deliveries that were left out.
            after, last: the position before and after.
        """
        given = {"made": write_json(made).decode(), "skipped": write_json(skipped).decode()}
        await self.rows(_FOLLOW, {**given, "after": after, "last": last, "now": now_ms})

    async def pending(self, target_ids: Collection[str], *, most: int) -> dict[str, int]:
        """Return the number of pending deliveries by target, at most `most` per target."""
        rows = await self.rows(_PENDING, {"ids": list(target_ids), "most": most})
        return {row["id"]: row["pending"] for row in rows}

    async def due(self, *, after_ms: int, now_ms: int) -> list[Target]:
        """Return the targets with deliveries that came due after `after_ms` and up to `now_ms`."""
        values = {"after_ms": after_ms, "now": now_ms}
        return [Target(**row) for row in await self.rows(_DUE, values)]

    async def waiting(self) -> list[Target]:
        """Return the targets with pending deliveries, due or not."""
        return [Target(**row) for row in await self.rows(_WAITING)]

    async def claim(
        self, target_id: str, *, most: int, now_ms: int, lease_ms: int
    ) -> list[RowDict]:
        """Claim due deliveries of a target until `lease_ms`: the first pending one of each line."""
        values = {"target_id": target_id, "most": most, "now": now_ms, "lease_ms": lease_ms}
        return await self.rows(_CLAIM, values)

    async def end(self, delivery_id: str, changes: RowDict, *, lease_ms: int) -> bool:
        """Store the result of an attempt; return False if the lease was lost.

        Args:
            changes: new values by column of the delivery.
            lease_ms: the end of the lease, as claimed.
        """
        is_held = (event_delivery.c.status == "pending", event_delivery.c.next_ms == lease_ms)
        ended = (
            sql.update(event_delivery)
            .where(event_delivery.c.id == delivery_id, *is_held)
            .values(changes)
        )
        return bool(await self.rows(ended.returning(event_delivery.c.id)))

    async def note(self, webhook_id: str, *, is_failed: bool, now_ms: int) -> None:
        """Note whether an attempt at a webhook failed; a day of failures pauses the webhook."""
        values = {"id": webhook_id, "is_failed": is_failed, "now": now_ms}
        await self.rows(_NOTE, values)

    async def pause(self, reasons: Mapping[str, str]) -> None:
        """Pause webhooks, by id, each with a reason."""
        found = [{"id": one, "reason": reason} for one, reason in reasons.items()]
        await self.rows(_PAUSE, {"found": write_json(found).decode()})

    async def tidy(self, *, now_ms: int) -> None:
        """End deliveries that could not be sent in time as failed; remove old ended ones."""
        for statement in (_GIVE_UP, _REMOVE_OLD):
            while len(await self.rows(statement, {"now": now_ms})) == _REMOVED_MAX:
                pass


async def entries_of_subscribers(
    reader: LedgerReader, *, after: int, last: int, most: int
) -> list[RowDict]:
    """Return (owner, entry) rows: the entries to which owners of active webhooks or event triggers
    are parties.

    The rows are in the order of the entries' ids.

    Args:
        after, last: the range of entry ids; the first is excluded.
        most: maximum rows. The rows of the last entry are complete, even if they exceed it.
    """
    return await reader.rows(_SEEN, {"after": after, "last": last, "most": most})


async def subscribers(reader: LedgerReader, owners: Collection[str]) -> list[RowDict]:
    """Return the active webhooks and event triggers of some owners."""
    return await reader.rows(_SUBSCRIBERS, {"owners": list(owners)})


async def ended_publishes(reader: LedgerReader, *, after: int, last: int) -> list[RowDict]:
    """Return the entries that end workflows with a `webhookUrl`, each with the URL."""
    return await reader.rows(
        _ENDS, {"after": after, "last": last, "ends": [one.value for one in END_EVENTS]}
    )


async def entry_rows(reader: LedgerReader, ids: Collection[int]) -> dict[int, RowDict]:
    """Return `id`, `body`, `hash` and the workflow's `template_id` of audit entries, by id."""
    return {row["id"]: row for row in await reader.rows(_ENTRIES, {"ids": list(ids)})}


async def entry_row(reader: LedgerReader, audit_id: int) -> RowDict:
    """Return one row of `entry_rows`."""
    return (await entry_rows(reader, [audit_id]))[audit_id]


async def ended_credentials(reader: LedgerReader, *, now_ms: int) -> dict[str, str]:
    """Return the active webhooks whose credential has ended: the reason by webhook id."""
    rows = await reader.rows(_ENDED, {"now": now_ms})
    return {row["id"]: row["reason"] for row in rows if row["reason"] is not None}
