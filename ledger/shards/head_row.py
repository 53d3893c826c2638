"""The row of the ledger's head: how it is read, taken and kept in motion.

What its values mean and when it may be taken: `core/shards/ledger_head.py`. Decision 0211.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from core.shards.ledger_head import LedgerHead, Succession
from ledger.connections.connecting import connect
from ledger.connections.timeouts import cut_after
from ledger.errors import LedgerFenced, LedgerUnavailable
from ledger.schema import READER_ROLE, driver_url, session_options
from ledger.tables.write_function import FUNCTION, lock_of

Connection = psycopg.AsyncConnection[Any]

# How long a reader of the head waits for a connection, and for an answer.
READ_TIMEOUT_S: Final = 2
_SESSION: Final = session_options(READER_ROLE, statement_timeout=f"{READ_TIMEOUT_S * 1000}")
_HOLD_FUNCTION: Final = "SELECT pg_advisory_lock_shared(%s), to_regproc(%s) IS NOT NULL"
_READ: Final = "SELECT epoch, audit_seq, beat, address FROM callboard.head"
# A writer that takes its own head again has another epoch when an answer was lost on the way.
_TAKE: Final = """
    UPDATE callboard.head SET epoch = epoch + 1, address = %(address)s
    WHERE %(epoch)s::bigint IS NULL
        OR address = %(address)s AND address <> ''
        OR epoch = %(epoch)s AND (NOT %(is_silent)s OR (audit_seq, beat) = (%(audit_id)s, %(beat)s))
    RETURNING epoch"""
# No disk is waited for: a beat that is lost in a crash says nothing wrong.
_BEAT: Final = """
    WITH lazily AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
    UPDATE callboard.head SET beat = beat + 1 FROM lazily WHERE epoch = %s RETURNING epoch"""


async def hold_commit_function(connection: Connection) -> bool:
    """Keep `post` migrations from dropping the commit function of this code as long as the
    connection lives; return whether the function exists.

    Raises:
        psycopg.Error: the server cannot be reached or refuses.
    """
    cursor = await connection.execute(_HOLD_FUNCTION, (lock_of(FUNCTION), FUNCTION))
    ((_, exists),) = await cursor.fetchall()
    return bool(exists)


async def take_head(connection: Connection, succession: Succession) -> int:
    """Become the writer; return the new epoch. What the writer before has under way is waited for.

    Raises:
        LedgerFenced: the head is not any more as it was read: another writer was quicker, or the
            one that was taken for silent is not.
        psycopg.Error: the server cannot be reached or refuses.
    """
    head = succession.head
    values = {
        "address": succession.address,
        "epoch": None if head is None else head.epoch,
        "is_silent": succession.is_silent,
        "audit_id": None if head is None else head.audit_id,
        "beat": None if head is None else head.beat,
    }
    cursor = await connection.execute(_TAKE, values)
    row = await cursor.fetchone()
    if row is None:
        raise LedgerFenced(f"the head is not as it was read: {head}")
    return int(row[0])


async def beat_head(connection: Connection, epoch: int) -> bool:
    """Show that the writer of this epoch lives; return False when another has taken over.

    Raises:
        psycopg.Error: the server cannot be reached or refuses.
    """
    cursor = await connection.execute(_BEAT, (epoch,), prepare=True)
    return await cursor.fetchone() is not None


class HeadReader:
    """Reads the head over a connection of its own, which is opened when it is needed.

    Args:
        url: `postgresql://…` of a login that is a member of `ledger_reader`.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None

    async def read(self) -> LedgerHead:
        """Return the head.

        Raises:
            LedgerUnavailable: it cannot be read within `READ_TIMEOUT_S` for each of connection and
                answer.
        """
        try:
            if self._connection is None:
                self._connection = await connect(
                    driver_url(self._url),
                    timeout_s=READ_TIMEOUT_S,
                    options=_SESSION,
                    application_name="callboard-head",
                )
                with cut_after(self._connection, READ_TIMEOUT_S):
                    await hold_commit_function(self._connection)
            with cut_after(self._connection, READ_TIMEOUT_S):
                cursor = await self._connection.execute(_READ)
                row = await cursor.fetchone()
        except psycopg.Error as error:
            await self.close()
            raise LedgerUnavailable(str(error).strip()) from error
        except BaseException:  # given up half-way: what still comes on it answers no question
            await self.close()
            raise
        if row is None:
            raise LedgerUnavailable("the head has no row")
        return LedgerHead(*row)

    async def close(self) -> None:
        """Close the connection; the next read opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
