"""Nonces of signed requests: each nonce is accepted once, by all replicas and across restarts.

Nonces are operational rows, but their commits wait for the disk: a nonce lost in a crash could be
replayed. This file checks the age of a signature once more, by the database's clock, which all
replicas share. A row may be deleted when its signature is too old by that clock. Decision
signed-requests-and-claims.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import sqlalchemy as sql
from sqlalchemy import BigInteger, LargeBinary
from sqlalchemy.dialects.postgresql import ARRAY

from core.trust.requests.request_signature import AGE_S_MAX
from ledger.connections.old_rows import OldRows
from ledger.connections.pools import OperationalPool

# Bounded, so that the next batch of nonces waits only some milliseconds for a deletion.
SWEPT_ROWS_MAX: Final = 500
# Longer than the maximum age, so that a clock that is set back a little opens no gap.
_KEPT_S: Final = AGE_S_MAX + 60

_NOW_S: Final = "floor(extract(epoch FROM clock_timestamp()))::bigint"
# Rows are inserted in the order of the hashes, so that two batches with equal nonces do not
# deadlock. A signature from before the database's start is refused, because a database restored
# from a copy has lost nonces.
_TAKE: Final = sql.text(
    f"""
    INSERT INTO callboard.request_nonce (hash, expires_s)
    SELECT given.hash, given.created_s + :kept_s
    FROM unnest(:hashes, :created) AS given (hash, created_s)
    WHERE given.created_s BETWEEN {_NOW_S} - :age_s AND {_NOW_S} + :age_s
        AND given.created_s >= floor(extract(epoch FROM pg_postmaster_start_time()))
    ORDER BY given.hash
    ON CONFLICT (hash) DO NOTHING
    RETURNING hash
    """
).bindparams(
    sql.bindparam("hashes", type_=ARRAY(LargeBinary)),
    sql.bindparam("created", type_=ARRAY(BigInteger)),
    sql.bindparam("kept_s", _KEPT_S, type_=BigInteger),
    sql.bindparam("age_s", AGE_S_MAX, type_=BigInteger),
)
_SWEEP: Final = sql.text(
    f"""
    WITH removed AS (
        DELETE FROM callboard.request_nonce WHERE hash IN (
            SELECT hash FROM callboard.request_nonce WHERE expires_s < {_NOW_S}
            ORDER BY expires_s LIMIT :rows_max FOR UPDATE SKIP LOCKED
        )
        RETURNING 1
    )
    SELECT count(*) AS rows FROM removed
    """
).bindparams(sql.bindparam("rows_max", SWEPT_ROWS_MAX, type_=sql.Integer))


class Nonce(NamedTuple):
    """A signer's nonce, and when its signature was created, Unix seconds."""

    did: str
    text: str
    created_s: int

    @property
    def hash(self) -> bytes:
        """The stored hash, 32 bytes."""
        return hashlib.sha256(f"{self.did}\n{self.text}".encode()).digest()


class NonceStore(OperationalPool):
    """The used nonces, written as the role `ops_writer`."""

    name, is_durable = "callboard-nonces", True

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.old = OldRows("nonces", self, _SWEEP)

    async def close(self) -> None:
        """Close all connections."""
        await self.old.close()
        await super().close()

    async def take(self, nonces: Sequence[Nonce]) -> list[bool]:
        """Take nonces; return for each whether it is new and its signature is recent.

        Args:
            nonces: one batch. If it contains equal nonces, only the first can be new.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; it is unknown whether the nonces are taken.
        """
        self.old.remove_soon()
        hashes = [nonce.hash for nonce in nonces]
        # Of equal nonces in one statement Postgres stores one.
        values = {"hashes": hashes, "created": [nonce.created_s for nonce in nonces]}
        taken = {bytes(row["hash"]) for row in await self.rows(_TAKE, values)}
        answers = []
        for digest in hashes:
            answers.append(digest in taken)
            taken.discard(digest)
        return answers
