"""Replies kept under the callers' idempotency keys, so that a repeat is answered as the first was.

Operational rows, but they wait for the disk: a reply that was sent must be found again after a
crash. What a reply says is sealed before it comes here, since some hold secrets. Old rows are swept
by the process that writes new ones. contract.md section 2 (Idempotency-Key); money.md section 2.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sql

from ledger.pools import OPERATIONAL_TIMEOUT_S, OperationalPool

SWEEP_PAUSE_S: Final = 60.0
SWEPT_MAX: Final = 10_000

_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
# The update changes nothing; without one, a row that is there already would not be returned.
_OPEN: Final = sql.text(
    f"""
    INSERT INTO callboard.http_reply AS r (principal, key, request_hash, expires_ms)
    VALUES (:principal, :key, :request_hash, {_NOW} + :kept_ms)
    ON CONFLICT (principal, key) DO UPDATE SET key = r.key
    RETURNING request_hash, reply, xmax = 0 AS is_new
    """
).bindparams(sql.bindparam("kept_ms", type_=sql.BigInteger))
# The first reply stays. The row may be gone: a repeat that was refused meanwhile took it back.
_KEEP: Final = sql.text(
    f"""
    INSERT INTO callboard.http_reply AS r (principal, key, request_hash, reply, expires_ms)
    VALUES (:principal, :key, :request_hash, :reply, {_NOW} + :kept_ms)
    ON CONFLICT (principal, key) DO UPDATE SET reply = excluded.reply,
        expires_ms = excluded.expires_ms
        WHERE r.reply IS NULL AND r.request_hash = excluded.request_hash
    """
).bindparams(sql.bindparam("kept_ms", type_=sql.BigInteger))
_DROP: Final = sql.text(
    "DELETE FROM callboard.http_reply WHERE principal = :principal AND key = :key AND reply IS NULL"
)
_SWEEP: Final = sql.text(
    f"""
    DELETE FROM callboard.http_reply WHERE (principal, key) IN (
        SELECT principal, key FROM callboard.http_reply WHERE expires_ms < {_NOW} LIMIT :most)
    """
).bindparams(sql.bindparam("most", type_=sql.Integer))


@dataclass(frozen=True, slots=True)
class KeptReply:
    """What is known under a key. `reply` None: the first call has not been answered yet.

    `is_new`: nothing was; the row is this caller's, who keeps a reply in it or drops it.
    """

    request_hash: bytes
    reply: bytes | None
    is_new: bool


class ReplyStore:
    """The kept replies, written as the role `ops_writer`.

    Args:
        url: `postgresql://…` of a login that is a member of `ops_writer`.
        kept_s: how long a reply is kept at least, in seconds.
        timeout_s: how long a call waits for a connection, and then for the server.
    """

    def __init__(
        self, url: str, *, kept_s: int, pool_size: int = 2, timeout_s: float = OPERATIONAL_TIMEOUT_S
    ) -> None:
        self._kept_ms = kept_s * 1_000
        self._swept_at = time.monotonic()
        self._pool = OperationalPool(
            url, "callboard-replies", size=pool_size, timeout_s=timeout_s, is_durable=True
        )

    def __repr__(self) -> str:
        return f"ReplyStore({self._pool!r})"

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    async def open(self, principal: str, key: str, request_hash: bytes) -> KeptReply:
        """Take a key for a request, or find what is there under it.

        Args:
            principal: whose key it is; the same key of two principals is two keys.
            request_hash: what a repeat must equal.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        if time.monotonic() - self._swept_at > SWEEP_PAUSE_S:
            await self.sweep()
        values = {"principal": principal, "key": key, "request_hash": request_hash}
        (row,) = await self._pool.rows(_OPEN, {**values, "kept_ms": self._kept_ms})
        reply = None if row["reply"] is None else bytes(row["reply"])
        return KeptReply(bytes(row["request_hash"]), reply, row["is_new"])

    async def keep(self, principal: str, key: str, request_hash: bytes, reply: bytes) -> None:
        """Keep the reply to a request, unless one is kept already.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        values = {"principal": principal, "key": key, "request_hash": request_hash}
        await self._pool.rows(_KEEP, {**values, "reply": reply, "kept_ms": self._kept_ms})

    async def drop(self, principal: str, key: str) -> None:
        """Give a key back whose request changed nothing; a kept reply stays.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        await self._pool.rows(_DROP, {"principal": principal, "key": key})

    async def sweep(self) -> None:
        """Remove replies that were kept long enough, so many at once.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        self._swept_at = time.monotonic()
        await self._pool.rows(_SWEEP, {"most": SWEPT_MAX})
