"""Webhooks as their owners create, change and read them, and their deliveries.

Operational rows: no command writes them and no audit entry names them, because an audited delivery
would cause deliveries. Reference: features.md (Webhooks).
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from core.records.api.triggers import TEST_EVENT
from ledger.connections.pools import OperationalPool
from ledger.reads.reader import LedgerReader, RowDict
from ledger.schema import event_delivery, webhook

# Each replica adds webhooks one at a time: an owner may get one more per other replica.
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
            row: as it was read.
        """
        is_same = (webhook.c.id == str(row["id"]), webhook.c.secrets == bytes(row["secrets"]))
        changed = sql.update(webhook).where(*is_same).values(changes)
        return await self.row(changed.returning(*webhook.c))

    async def resume(self, webhook_id: str, *, now_ms: int) -> None:
        """Make the deliveries due now that came due while a webhook was paused."""
        waiting = (event_delivery.c.target_id == webhook_id, event_delivery.c.status == "pending")
        is_due = event_delivery.c.next_ms <= now_ms
        due = sql.update(event_delivery).where(*waiting, is_due).values(next_ms=now_ms)
        await self.rows(due)

    async def delete(self, webhook_id: str, *, now_ms: int) -> None:
        """Delete a webhook, and give up its deliveries."""
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

        It gets a line of its own, so later deliveries do not wait for it.
        """
        ended = (event_delivery.c.id == delivery_id, event_delivery.c.status != "pending")
        again = {"status": "pending", "attempts": 0, "next_ms": now_ms, "ends_ms": now_ms + DAY_MS}
        again |= {"line": delivery_id, **dict.fromkeys(("http_status", "error", "ended_ms"))}
        return await self.row(
            sql.update(event_delivery).where(*ended).values(again).returning(*_SHOWN)
        )


async def webhook_row(reader: LedgerReader, webhook_id: str) -> RowDict | None:
    """Return a webhook, None when there is none."""
    return await reader.row(sql.select(webhook).where(webhook.c.id == webhook_id))


async def webhook_rows(
    reader: LedgerReader, owner_did: str | None, *, limit: int, offset: int, after: str | None
) -> list[RowDict]:
    """Return webhooks, the oldest first.

    Args:
        owner_did: whose; None: everybody's.
        after: only those behind this id.
    """
    return await reader.listed(
        sql.select(webhook), "id", after, limit=limit, offset=offset, owner_did=owner_did
    )


async def delivery_row(reader: LedgerReader, webhook_id: str, delivery_id: str) -> RowDict | None:
    """Return a delivery of a webhook, None when there is none."""
    is_it = (event_delivery.c.id == delivery_id, event_delivery.c.target_id == webhook_id)
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
    query = sql.select(*_SHOWN).where(event_delivery.c.target_id == webhook_id)
    return await reader.listed(
        query, "id", before, limit=limit, offset=offset, is_newest_first=True, status=status
    )
