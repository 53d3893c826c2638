"""The ledger's head: the lock that makes one process the writer, and the row that names the writer.

Theory of operation. The writer's session holds an advisory lock until the session ends. So the next
writer gets the lock only after the last statement of the previous writer has ended. This holds even
if the previous process was killed or is frozen. The writer sends a statement every second. Postgres
ends the writer's session after 3 s without a statement (`idle_session_timeout`). A process that
waits for the lock ends the holder's session if the state of that session has not changed for 10 s.
A frozen process or a lost machine therefore loses the lock, and cannot commit when it comes back.
After locking, the new writer raises the epoch and writes its actor's name into the row, where
callers find it. A transaction pooler between the ledger and Postgres would break this, because it
shares sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from ledger.connections.connect import fetch
from ledger.connections.timeouts import cut_after
from ledger.reads.prepared_reads import PreparedReads
from ledger.schema import WRITER_ROLE
from ledger.tables.write_function import FUNCTION, lock_of

Connection = psycopg.AsyncConnection[Any]

# How long a reader of the head waits for a connection, and then for a reply.
READ_TIMEOUT_S: Final = 2.0
WAIT_S: Final = 0.2
SILENT_S: Final = 10.0
POLL_TIMEOUT_S: Final = 10
WRITER_LOCK: Final = 0x63616C6C626F6172
# Settings of the writer's session. With `KEEPALIVES` they limit how long each side waits for a lost
# machine.
SESSION_TIMEOUTS: Final = {
    "idle_session_timeout": "3000",
    "idle_in_transaction_session_timeout": "3000",
    "tcp_keepalives_idle": "3",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
}
KEEPALIVES: Final = {"keepalives_idle": 3, "keepalives_interval": 1, "keepalives_count": 3}
_HOLD_FUNCTION: Final = "SELECT pg_advisory_lock_shared(%s), to_regproc(%s) IS NOT NULL"
_READ: Final = "SELECT epoch, address AS actor FROM callboard.head"
_LOCK: Final = "SELECT pg_try_advisory_lock(%s)"
_END_SILENT_HOLDER: Final = """
    SELECT pg_terminate_backend(a.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'advisory' AND l.granted AND a.datname = current_database()
        AND (l.classid::bigint << 32 | l.objid::bigint) = %s AND l.objsubid = 1
        AND a.state_change < clock_timestamp() - make_interval(secs => %s)"""
_TAKE: Final = "UPDATE callboard.head SET epoch = epoch + 1, address = %s RETURNING epoch"


@dataclass(frozen=True, slots=True)
class LedgerHead:
    """The head row. `actor`: the name of the writer's actor, "" before the first writer."""

    epoch: int
    actor: str


async def hold_commit_function(connection: Connection) -> bool:
    """Prevent `post` migrations from dropping this code's commit function while the connection is
    open; return whether the function exists.

    Raises:
        psycopg.Error: the server cannot be reached or refuses.
    """
    ((_, exists),) = await fetch(connection, _HOLD_FUNCTION, (lock_of(FUNCTION), FUNCTION))
    return bool(exists)


async def wait_for_lock(
    connection: Connection, on_waiting: Callable[[], None], *, silent_s: float = SILENT_S
) -> None:
    """Lock the head for the rest of the session, and take the writer's role; wait without limit.

    Args:
        connection: uses its login's role until the lock is held, because only that role may end
            other sessions of the login.
        on_waiting: called after each failed attempt to get the lock.
        silent_s: the holder's session is ended if the state of that session has not changed for
            this number of seconds.

    Raises:
        psycopg.Error: the server cannot be reached or refuses.
    """
    while True:
        with cut_after(connection, POLL_TIMEOUT_S):
            ((is_taken,),) = await fetch(connection, _LOCK, (WRITER_LOCK,))
            if is_taken:
                await connection.execute("SELECT set_config('role', %s, false)", (WRITER_ROLE,))
                return
            await connection.execute(_END_SILENT_HOLDER, (WRITER_LOCK, silent_s))
        on_waiting()
        await asyncio.sleep(WAIT_S)


async def take_head(connection: Connection, actor: str) -> int:
    """Raise the epoch and name the writer's actor; return the new epoch.

    Raises:
        psycopg.Error: the server cannot be reached or refuses.
    """
    ((epoch,),) = await fetch(connection, _TAKE, (actor,))
    return int(epoch)


class HeadReader(PreparedReads):
    """Reads the head over its own connection, which is opened on first use.

    Args:
        url: `postgresql://…` of a login that is a member of `ledger_reader`.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url, timeout_s=READ_TIMEOUT_S)

    async def read(self) -> LedgerHead:
        """Return the head.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        (row,) = await self.rows(_READ, {})
        return LedgerHead(**row)
