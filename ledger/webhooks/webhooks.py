"""Webhooks as their owners create, change and read them, and their deliveries.

Operational rows: no command writes them and no audit entry names them, because an audited delivery
would cause deliveries. Reference: features.md (Webhooks).
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from core.records.api.webhooks import TEST_EVENT
from ledger.connections.pools import OperationalPool
from ledger.reads.reader import LedgerReader, RowDict

# Each replica adds webhooks one at a time: an owner may get one more per other replica.
WEBHOOKS_MAX: Final = 100
DAY_MS: Final = 24 * 3_600_000

_UUID: Final = sql.Uuid(as_uuid=False)
_WEBHOOK: Final = sql.table(
    "webhook",
    sql.column("id", _UUID),
    sql.column("events", sql.ARRAY(sql.Text)),
    sql.column("secrets", sql.LargeBinary),
    *(
        sql.column(name, sql.Text)
        for name in ("owner_did", "url", "pause_reason", "signed_key", "key_id")
    ),
    *(
        sql.column(name, sql.BigInteger)
        for name in (
            "former_ends_ms", "expires_ms", "after_id", "failing_ms", "created_ms", "updated_ms",
            "skipped_events",
        )
    ),
    schema="callboard",
)  # fmt: skip
DELIVERY: Final = sql.table(
    "event_delivery",
    *(sql.column(name, _UUID) for name in ("id", "target_id", "workflow_id", "line")),
    *(
        sql.column(name, sql.Text)
        for name in ("kind", "owner_did", "event_type", "status", "error")
    ),
    *(
        sql.column(name, sql.BigInteger)
        for name in (
            "audit_id", "attempts", "next_ms", "ends_ms", "http_status", "created_ms", "ended_ms",
        )
    ),
    schema="callboard",
)  # fmt: skip
_SHOWN: Final = (*DELIVERY.c, DELIVERY.c.target_id.label("webhook_id"))


class WebhookStore(OperationalPool):
    """The webhooks, written as the role `ops_writer`.

    Args:
        url: `postgresql://…` of a login that is a member of `ops_writer`.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url, "callboard-webhooks", is_durable=True)

    async def add(self, owner_did: str, columns: RowDict) -> RowDict | None:
        """Add a webhook and return it; None: its owner has `WEBHOOKS_MAX` already."""
        given = {"owner_did": owner_did, **columns}
        own = sql.select(sql.func.count()).where(_WEBHOOK.c.owner_did == owner_did)
        values = [sql.literal(value, _WEBHOOK.c[name].type) for name, value in given.items()]
        row = sql.select(*values).where(own.scalar_subquery() < WEBHOOKS_MAX)
        added = sql.insert(_WEBHOOK).from_select(list(given), row)
        return await self.row(added.returning(*_WEBHOOK.c))

    async def change(self, row: RowDict, changes: RowDict) -> RowDict | None:
        """Change columns of a webhook and return it; None: it was deleted, or has other secrets.

        Args:
            row: as it was read.
        """
        is_same = (_WEBHOOK.c.id == str(row["id"]), _WEBHOOK.c.secrets == bytes(row["secrets"]))
        changed = sql.update(_WEBHOOK).where(*is_same).values(changes)
        return await self.row(changed.returning(*_WEBHOOK.c))

    async def resume(self, webhook_id: str, *, now_ms: int) -> None:
        """Make the deliveries due now that came due while a webhook was paused."""
        waiting = (DELIVERY.c.target_id == webhook_id, DELIVERY.c.status == "pending")
        is_due = DELIVERY.c.next_ms <= now_ms
        due = sql.update(DELIVERY).where(*waiting, is_due).values(next_ms=now_ms)
        await self.rows(due)

    async def delete(self, webhook_id: str, *, now_ms: int) -> None:
        """Delete a webhook, and give up its deliveries."""
        await self.rows(sql.delete(_WEBHOOK).where(_WEBHOOK.c.id == webhook_id))
        left = (DELIVERY.c.target_id == webhook_id, DELIVERY.c.status == "pending")
        ended = {"status": "failed", "ended_ms": now_ms, "ends_ms": now_ms}
        await self.rows(sql.update(DELIVERY).where(*left).values(ended))

    async def test(self, row: RowDict, delivery_id: str, *, now_ms: int) -> RowDict:
        """Create a test delivery and return it."""
        columns = {"id": delivery_id, "target_id": str(row["id"]), "owner_did": row["owner_did"]}
        columns |= {"kind": "webhook", "line": delivery_id, "event_type": TEST_EVENT}
        columns |= {"next_ms": now_ms, "ends_ms": now_ms + DAY_MS}
        added = sql.insert(DELIVERY).values(**columns, created_ms=now_ms)
        made = await self.row(added.returning(*_SHOWN))
        assert made is not None
        return made

    async def redeliver(self, delivery_id: str, *, now_ms: int) -> RowDict | None:
        """Make an ended delivery due again and return it; None: it has not ended.

        It gets a line of its own, so later deliveries do not wait for it.
        """
        ended = (DELIVERY.c.id == delivery_id, DELIVERY.c.status != "pending")
        again = {"status": "pending", "attempts": 0, "next_ms": now_ms, "ends_ms": now_ms + DAY_MS}
        again |= {"line": delivery_id, **dict.fromkeys(("http_status", "error", "ended_ms"))}
        return await self.row(sql.update(DELIVERY).where(*ended).values(again).returning(*_SHOWN))


async def webhook_row(reader: LedgerReader, webhook_id: str) -> RowDict | None:
    """Return a webhook, None when there is none."""
    return await reader.row(sql.select(_WEBHOOK).where(_WEBHOOK.c.id == webhook_id))


async def webhook_rows(
    reader: LedgerReader, owner_did: str | None, *, limit: int, offset: int, after: str | None
) -> list[RowDict]:
    """Return webhooks, the oldest first.

    Args:
        owner_did: whose; None: everybody's.
        after: only those behind this id.
    """
    return await reader.listed(
        sql.select(_WEBHOOK), "id", after, limit=limit, offset=offset, owner_did=owner_did
    )


async def delivery_row(reader: LedgerReader, webhook_id: str, delivery_id: str) -> RowDict | None:
    """Return a delivery of a webhook, None when there is none."""
    is_it = (DELIVERY.c.id == delivery_id, DELIVERY.c.target_id == webhook_id)
    return await reader.row(sql.select(*_SHOWN).where(*is_it))


async def delivery_rows(
    reader: LedgerReader,
    webhook_id: str,
    *,
    status: str | None,
    limit: int,
    offset: int,
    before: str | None,
) -> list[RowDict]:
    """Return deliveries of a webhook, the newest first.

    Args:
        status: in which state; None: all.
        before: only those before this id.
    """
    query = sql.select(*_SHOWN).where(DELIVERY.c.target_id == webhook_id)
    return await reader.listed(
        query, "id", before, limit=limit, offset=offset, is_newest_first=True, status=status
    )
