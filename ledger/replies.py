"""HTTP replies stored under callers' idempotency keys, so that a repeat gets the first reply.

The rows are operational, but commits wait for the disk, because a reply that was sent must be found
after a crash. Replies are sealed before they are stored, because some contain secrets. Old rows are
removed on a separate connection, with a maximum of rows and bytes per statement. Reference:
money.md (Rules that the database enforces).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sql

from ledger.connections.old_rows import OldRows
from ledger.connections.pools import OperationalPool

# A removing statement deletes at most `SWEPT_ROWS_MAX` rows. It stops after the row with which
# their size reaches `SWEPT_BYTES_MAX`.
SWEPT_ROWS_MAX: Final = 500
SWEPT_BYTES_MAX: Final = 4 * 1024 * 1024
# Stored instead of a reply when the outcome of the request is unknown: a repeat executes the
# request again.
OUTCOME_UNKNOWN: Final = b""

_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
# The update changes nothing, but without it an existing row would not be returned.
_OPEN: Final = sql.text(
    f"""
    INSERT INTO callboard.http_reply AS r (principal, key, request_hash, expires_ms)
    VALUES (:principal, :key, :request_hash, {_NOW} + :kept_ms)
    ON CONFLICT (principal, key) DO UPDATE SET key = r.key
    RETURNING request_hash, reply, xmax = 0 AS is_new
    """
).bindparams(sql.bindparam("kept_ms", type_=sql.BigInteger))
# A stored reply is not replaced. The row may be absent, because a refused repeat may have deleted
# it.
_KEEP: Final = sql.text(
    f"""
    INSERT INTO callboard.http_reply AS r (principal, key, request_hash, reply, expires_ms)
    VALUES (:principal, :key, :request_hash, :reply, {_NOW} + :kept_ms)
    ON CONFLICT (principal, key) DO UPDATE SET reply = excluded.reply,
        expires_ms = excluded.expires_ms
        WHERE coalesce(r.reply, '') = '' AND r.request_hash = excluded.request_hash
    """
).bindparams(sql.bindparam("kept_ms", type_=sql.BigInteger))
_DROP: Final = sql.text(
    "DELETE FROM callboard.http_reply WHERE principal = :principal AND key = :key"
    " AND coalesce(reply, '') = ''"
)
# Rows that are locked by another replica or by a request are skipped; a later statement removes
# them.
_SWEEP: Final = sql.text(
    f"""
    WITH old AS MATERIALIZED (
        SELECT principal, key, expires_ms, coalesce(octet_length(reply), 0) AS bytes
        FROM callboard.http_reply WHERE expires_ms < {_NOW}
        ORDER BY expires_ms LIMIT :rows_max FOR UPDATE SKIP LOCKED
    ), counted AS (
        SELECT principal, key, sum(bytes) OVER (ORDER BY expires_ms, principal, key) - bytes
            AS bytes_before
        FROM old
    ), removed AS (
        DELETE FROM callboard.http_reply USING counted
        WHERE http_reply.principal = counted.principal AND http_reply.key = counted.key
            AND counted.bytes_before < :bytes_max
        RETURNING 1
    )
    SELECT count(*) AS rows FROM removed
    """
)


def removal_of_replies() -> sql.TextClause:
    """Return the statement that removes the oldest expired replies.

    It removes at most `SWEPT_ROWS_MAX` replies, and stops after the reply with which their size
    reaches `SWEPT_BYTES_MAX`.
    """
    return _SWEEP.bindparams(
        sql.bindparam("rows_max", SWEPT_ROWS_MAX, type_=sql.Integer),
        sql.bindparam("bytes_max", SWEPT_BYTES_MAX, type_=sql.BigInteger),
    )


@dataclass(frozen=True, slots=True)
class KeptReply:
    """The row of an idempotency key.

    `reply` None: the first request with the key has no reply yet. `is_new`: the row did not exist.
    The caller must then store a reply in it (`keep`) or delete it (`drop`).
    """

    request_hash: bytes
    reply: bytes | None
    is_new: bool


class SweepPool(OperationalPool):
    """Removes expired replies."""

    name, is_durable = "callboard-old-replies", False


class ReplyStore(OperationalPool):
    """The stored replies, written as the role `ops_writer`.

    Args:
        url: `postgresql://…` of a login that is a member of `ops_writer`.
        kept_s: how long a reply is stored at least, in seconds.
    """

    name, is_durable, size = "callboard-replies", True, 2

    def __init__(self, url: str, *, kept_s: int) -> None:
        super().__init__(url)
        self._kept_ms = kept_s * 1_000
        self._sweep_pool = SweepPool(url)
        self.old = OldRows("replies", self._sweep_pool, removal_of_replies())

    async def close(self) -> None:
        """Close all connections."""
        await self.old.close()
        await self._sweep_pool.close()
        await super().close()

    async def open(self, principal: str, key: str, request_hash: bytes) -> KeptReply:
        """Reserve a key for a request, or return its row if it exists.

        Args:
            principal: the caller who chose the key. Equal keys of two principals are different
                keys.
            request_hash: the hash that a repeat must have too.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        self.old.remove_soon()
        values = {"principal": principal, "key": key, "request_hash": request_hash}
        (row,) = await self.rows(_OPEN, {**values, "kept_ms": self._kept_ms})
        reply = None if row["reply"] is None else bytes(row["reply"])
        return KeptReply(bytes(row["request_hash"]), reply, row["is_new"])

    async def keep(self, principal: str, key: str, request_hash: bytes, reply: bytes) -> None:
        """Store the reply to a request, unless the key has a reply already.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        values = {"principal": principal, "key": key, "request_hash": request_hash}
        await self.rows(_KEEP, {**values, "reply": reply, "kept_ms": self._kept_ms})

    async def drop(self, principal: str, key: str) -> None:
        """Delete the row of a request that changed nothing, unless it has a reply.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        await self.rows(_DROP, {"principal": principal, "key": key})
