"""What has changed of what owners know, by one statement: for caches to read what is new.

`DirectoryTail` holds one connection. A look returns what has changed since an earlier one: cards
(that they have changed), prices, versions and revocations by their audit ids; heartbeats,
reputations and stakes by the time of their change and the transactions that the earlier look could
not see, so that a row is read once, and one that is committed late is not missed. The same
connection listens for notices, which say that it is time to look; where they do not arrive
(poolers), or the connection was away, the follower looks twice a second anyway. Decisions postgres
and agent-health-and-waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import psycopg
from psycopg.pq.abc import PGconn

from core.json_text import read_json
from core.market.agent_liveness import Liveness
from core.market.reputation import Tally
from core.records.audit import AuditEventType
from ledger.agents.directory_reads import (
    CHANGES_MAX,
    OF_AGENTS,
    OF_PRICES,
    OF_REVOCATIONS,
    OF_VERSIONS,
)
from ledger.connections.connecting import connect
from ledger.connections.timeouts import cut_after
from ledger.reads.stored import RowDict
from ledger.schema import READER_ROLE, driver_url, session_options, unreachable

CHANNEL: Final = "callboard_directory"
LOOK_TIMEOUT_S: Final = 5.0
# Rows of one dated kind that a look returns; more are read page by page.
DATED_MAX: Final = 1_000

# What the audit chain says of, each with the targets' table; and what has the time of its change.
CHAINED: Final = ("agents", "prices", "versions", "revocations")
DATED: Final = ("live", "reputations", "stakes")


# The agent, what is known of it, and the time of its change.
DatedRow = tuple[str, Any, int]


class Asked(NamedTuple):
    """From where on a look is to return changes.

    Attributes:
        after: for each of `CHAINED` the audit id of the last change that is known.
        since_ms: for each of `DATED` the time from which on rows are looked at.
        unseen: for each of `DATED` the `Look.unseen` of the look that was last made use of; None,
            or that of another connection: every row since that time.
    """

    after: Sequence[int]
    since_ms: Sequence[int]
    unseen: Sequence[str | None]


class Look(NamedTuple):
    """What one look has found.

    Attributes:
        chained: for each of `CHAINED` the rows that have changed, with `changed_id`, in the order
            of their newest changes, at most `CHANGES_MAX`: if so many, there may be more. Of agents
            `did`, `status` and `updated_ms` alone, of versions without their schemas.
        dated: for each of `DATED` the rows that have changed, None where they are too many: the
            agent's DID, what is known of it (`Liveness`, `Tally`, the free and the locked stake in
            micro-credits), and the time of its change.
        unseen: names the connection, and the transactions whose rows the look may not have seen.
    """

    chained: tuple[Sequence[RowDict], ...]
    dated: tuple[Sequence[DatedRow] | None, ...]
    unseen: str

    @property
    def is_whole(self) -> bool:
        """Whether there is no more to look at for now."""
        return all(len(rows) < CHANGES_MAX for rows in self.chained)


def _chained(
    place: int, events: Sequence[AuditEventType], table: str, key: str, columns: str
) -> str:
    """Return the rows of the targets of later events, each once, as JSON."""
    kinds = ", ".join(f"'{event.value}'" for event in events)
    return (
        f"(SELECT json_agg(r)::text FROM (SELECT {columns}, changed.id AS changed_id FROM ("
        "SELECT e.target_id, max(e.audit_id) AS id FROM callboard.audit_event e"
        f" WHERE e.event_type IN ({kinds}) AND e.audit_id > ($1::bigint[])[{place}]"
        f" GROUP BY 1) AS changed JOIN callboard.{table} t ON t.{key} = changed.target_id"
        f" ORDER BY changed.id LIMIT {CHANGES_MAX}) AS r)"
    )


def _dated(place: int, table: str, did: str, known: str, joined: str = "") -> str:
    """Return the rows of a table's window that an earlier look could not see, as JSON arrays."""
    return (
        "(SELECT json_agg(r.row)::text FROM ("
        f"SELECT json_build_array(t.{did}, json_build_array({known}), t.updated_ms) AS row"
        f" FROM callboard.{table} t {joined} WHERE t.updated_ms >= ($2::bigint[])[{place}]"
        f" AND age(t.xmin) <= coalesce(age(($3::text[])[{place}]::xid8::xid), {2**31 - 1})"
        f" LIMIT {DATED_MAX + 1}) AS r)"
    )


_PARTS: Final = (
    _chained(1, OF_AGENTS, "agent", "did", "t.did, t.status, t.updated_ms"),
    _chained(
        2,
        OF_PRICES,
        "capability_price",
        "capability_id",
        # As text, since a number of JSON would be rounded.
        "t.capability_id, t.price_cents, t.input_rate::text, t.output_rate::text",
    ),
    _chained(3, OF_VERSIONS, "capability_version", "id", "t.capability_id, t.version, t.status"),
    _chained(4, OF_REVOCATIONS, "revocation", "did", "t.did, t.expires_ms, t.ended_ms"),
    # In the order of the fields of `Liveness` and `Tally`.
    _dated(1, "agent_live", "did", "t.status, t.load, t.heartbeat_ms, t.probe_ms, t.probe_ok"),
    _dated(
        2,
        "reputation",
        "agent_did",
        "t.successful, t.failed, t.cancelled, t.latency_ms_sum, t.paid_successful, t.paid_failed,"
        " t.paid_cancelled, t.paid_latency_ms_sum",
    ),
    _dated(
        3,
        "stake",
        "agent_did",
        "free.balance, locked.balance",
        "JOIN callboard.account free ON free.id = t.free_account_id"
        " JOIN callboard.account locked ON locked.id = t.locked_account_id",
    ),
)
# Typed, since they are many: what is decoded is what directories keep.
_DATED_DECODERS: Final[tuple[msgspec.json.Decoder[list[DatedRow]], ...]] = (
    msgspec.json.Decoder(list[tuple[str, Liveness, int]]),
    msgspec.json.Decoder(list[tuple[str, Tally, int]]),
    msgspec.json.Decoder(list[tuple[str, tuple[int, int], int]]),
)
_LOOK: Final = f"SELECT pg_snapshot_xmin(pg_current_snapshot())::text, {', '.join(_PARTS)}"

_log = logging.getLogger("callboard.ledger")


class DirectoryTail:
    """One connection, opened when first needed and again after it was lost.

    For one task, which looks or waits for a notice; others may only `wake` it.

    Args:
        url: `postgresql://…` of a login that is a member of `ledger_reader`.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.AsyncConnection[Any] | None = None
        # The socket on which notices are waited for: a connection that has broken does not tell it.
        self._listening: int | None = None
        # Whether a notice has come since the last look began, and who waits for one.
        self.is_noticed = False
        self._waiting: asyncio.Future[None] | None = None
        self.connects = 0

    def __repr__(self) -> str:
        return f"DirectoryTail(is_open={self._connection is not None}, connects={self.connects})"

    async def close(self) -> None:
        """Close the connection."""
        await self._drop()

    async def look(self, asked: Asked) -> Look:
        """Return what has changed.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE.
        """
        unseen, *texts = await self._run(asked)
        chained = tuple(read_json(text) if text else [] for text in texts[: len(CHAINED)])
        dated = tuple(
            decoder.decode(text) if text else []
            for decoder, text in zip(_DATED_DECODERS, texts[len(CHAINED) :], strict=True)
        )
        found = tuple(rows if len(rows) <= DATED_MAX else None for rows in dated)
        return Look(chained, found, f"{self.connects} {unseen}")

    async def wait_notice(self, timeout_s: float) -> None:
        """Return after a notice that came since the last look began, a `wake`, or the timeout."""
        if self.is_noticed:
            return
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_later(timeout_s, self.wake)
        self._listen()
        try:
            await self._waiting
        finally:
            timer.cancel()
            self._waiting = None
            self._deafen()

    def wake(self) -> None:
        """Let who waits for a notice wait no longer."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _note(self, _: object = None) -> None:
        self.is_noticed = True
        self.wake()

    async def _run(self, asked: Asked) -> tuple[str, ...]:
        was_open, time_s = self._connection is not None, asyncio.get_running_loop().time
        begun_s = time_s()
        try:
            connection = self._connection or await self._connect()
            # What is noticed from here on may have been committed after the look.
            self.is_noticed = False
            with cut_after(connection, LOOK_TIMEOUT_S):
                cursor = psycopg.AsyncRawCursor(connection)
                await cursor.execute(_LOOK, self._values(asked), prepare=True)
                row: tuple[str, ...] | None = await cursor.fetchone()
        except BaseException as error:
            await self._drop()
            if not isinstance(error, psycopg.Error):
                raise
            if not was_open or time_s() - begun_s >= LOOK_TIMEOUT_S:
                raise unreachable(error) from None
        else:
            assert row is not None
            return row
        # It had been lost since the look before: who asks is answered when its change is read.
        return await self._run(asked)

    def _values(self, asked: Asked) -> list[str]:
        """Return the statement's parameters.

        A database that was started anew, or another one in its place, may number transactions
        again that it has lost: what an earlier connection had seen is no longer known.
        """
        here = f"{self.connects} "
        unseen = [
            one.removeprefix(here) if one is not None and one.startswith(here) else None
            for one in asked.unseen
        ]
        return [_array(asked.after), _array(asked.since_ms), _array(unseen)]

    def _listen(self) -> None:
        """Hear of notices as long as they are waited for; a look hears of them by itself."""
        if self._connection is not None:
            self._listening = self._connection.fileno()
            asyncio.get_running_loop().add_reader(
                self._listening, self._read_notices, self._connection.pgconn
            )

    def _deafen(self) -> None:
        # Once: of a connection that was lost the socket's number is soon another one's.
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening = None

    def _read_notices(self, pgconn: PGconn) -> None:
        try:
            pgconn.consume_input()
            while pgconn.notifies() is not None:
                self._note()
        except psycopg.Error as error:
            # The next look finds the connection broken and connects again.
            _log.warning("directory notices lost: %s", str(error).strip())
            self._deafen()
            self._note()

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        connection = await connect(
            driver_url(self._url),
            options=session_options(READER_ROLE),
            application_name="callboard-tail",
        )
        # Kept at once, so that it is dropped whatever fails.
        self._connection = connection
        connection.add_notify_handler(self._note)
        with cut_after(connection, LOOK_TIMEOUT_S):
            await connection.execute(f"LISTEN {CHANNEL}")
        self.connects += 1
        return connection

    async def _drop(self) -> None:
        self._deafen()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def _array(values: Sequence[int | str | None]) -> str:
    """Return numbers as Postgres writes an array of them: one type, so one prepared statement."""
    return f"{{{','.join('NULL' if one is None else str(one) for one in values)}}}"
