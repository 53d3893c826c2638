"""Reads that nearly every request needs, prepared on one connection.

Through SQLAlchemy's execution a workflow's record costs 1.2 ms of processor time, prepared on a
connection of its own 0.4, and past the driver's cursors (`ledger/connections/exchanges.py`) less.
The statements are SQLAlchemy's all the same, compiled once. Rows are those that
`LedgerReader.rows` would return. Decisions 0120 and 0299.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

import psycopg
import sqlalchemy as sql
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn
from psycopg.types.string import TextLoader
from sqlalchemy.dialects.postgresql import psycopg as postgresql

from core.errors import ErrorCode, ServiceError
from ledger.connections.connecting import connect
from ledger.connections.exchanges import receive
from ledger.connections.timeouts import cut_after
from ledger.reads.stored import RowDict
from ledger.schema import READER_ROLE, driver_url, session_options, unreachable

# Statements that a connection keeps prepared: as many texts, and types of their parameters. Beyond
# it all are prepared anew, since callers may ask for the one and the other as they like.
KEPT_MAX: Final = 200
_PLACE: Final = re.compile(r"%(?:\((\w+)\)s|%)")


@dataclass(frozen=True, slots=True)
class PreparedStatement:
    """A statement's text, and those of its parameters that are the same at each run."""

    text: str
    constants: Mapping[str, Any]

    @classmethod
    def of(cls, statement: sql.Select[Any]) -> Self:
        """Compile a statement."""
        dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
        compiled = statement.compile(dialect=dialect)
        return cls(str(compiled), dict(compiled.params))


class PreparedReads:
    """One connection, opened when first needed and again after it was lost.

    Args:
        url: `postgresql://…` of a login that is a member of `ledger_reader`.
        timeout_s: how long a read waits for its turn, and then for the server.
        statement_timeout_ms: how long the server works on a read; 0: as long as it takes.
    """

    def __init__(self, url: str, *, timeout_s: float, statement_timeout_ms: int = 0) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._statement_timeout_ms = statement_timeout_ms
        self._connection: psycopg.AsyncConnection[Any] | None = None
        # Of the connection, which does not tell it any more once it has broken.
        self._socket = -1
        # By text and types of parameters: the name at the server, and those of the columns.
        self._kept: dict[tuple[str, tuple[int, ...]], tuple[bytes, list[str]]] = {}
        # Names that were given, and how many of them the server has forgotten.
        self._named = self._forgotten = 0
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"PreparedReads(is_open={self._connection is not None})"

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        self._kept.clear()
        self._forgotten = self._named
        if connection is not None:
            await connection.close()

    async def rows(self, statement: PreparedStatement, values: Mapping[str, Any]) -> list[RowDict]:
        """Return the rows of a statement.

        Args:
            values: of its parameters that are no constants.

        Raises:
            ServiceError: LEDGER_UNAVAILABLE; OVERLOADED, the server ended it at its timeout.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._turn.acquire()
        except TimeoutError as error:
            raise unreachable(error) from None
        try:
            ends_s = loop.time() + self._timeout_s
            return await self._read(statement, {**statement.constants, **values}, ends_s)
        except psycopg.errors.QueryCanceled:
            detail = "the search took too long; ask for less, or again later"
            raise ServiceError(ErrorCode.OVERLOADED, detail, retry_after_s=5) from None
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise unreachable(error) from None
        finally:
            self._turn.release()

    async def _read(
        self, statement: PreparedStatement, values: Mapping[str, Any], ends_s: float
    ) -> list[RowDict]:
        was_open, time_s = self._connection is not None, asyncio.get_running_loop().time
        try:
            if self._connection is None:
                self._connection = await self._open()
            with cut_after(self._connection, ends_s - time_s()):
                return await self._run(self._connection, statement.text, values)
        except psycopg.errors.QueryCanceled:
            raise  # at its timeout; the connection is as before
        except (psycopg.OperationalError, psycopg.InterfaceError):
            await self.close()
            if not was_open or time_s() >= ends_s:
                raise
        except psycopg.DataError:
            raise  # a value was refused; the connection is as before
        except BaseException:
            # Cancelled on the way, perhaps in the middle of an answer.
            await self._abandon()
            raise
        # It had been lost since the read before: Postgres was started anew.
        return await self._read(statement, values, ends_s)

    async def _abandon(self) -> None:
        """Close the connection, and let the server do no more for it.

        Else it would work on, beside the reads that follow, for each client that has left.
        """
        connection = self._connection
        try:
            if connection and connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
                with suppress(psycopg.Error):
                    await connection.cancel_safe(timeout=self._timeout_s)
        finally:
            await self.close()

    async def _run(
        self, connection: psycopg.AsyncConnection[Any], text: str, values: Mapping[str, Any]
    ) -> list[RowDict]:
        query, names = _by_number(text)
        transformer = Transformer(connection)
        given = [values[name] for name in names]
        sent = transformer.dump_sequence(given, [PyFormat.AUTO] * len(given))
        key = (text, transformer.types or ())
        name, columns = self._kept.get(key) or await self._prepare(connection.pgconn, key, query)
        connection.pgconn.send_query_prepared(name, sent, transformer.formats)
        found = await receive(connection.pgconn, self._socket)
        transformer.set_pgresult(found)
        return transformer.load_rows(
            0, found.ntuples, lambda row: dict(zip(columns, row, strict=True))
        )

    async def _prepare(
        self, pgconn: PGconn, key: tuple[str, tuple[int, ...]], query: bytes
    ) -> tuple[bytes, list[str]]:
        """Prepare a statement; return its name and those of its columns."""
        if self._named - self._forgotten >= KEPT_MAX:
            self._kept.clear()
            pgconn.send_query_params(b"DEALLOCATE ALL", None)
            await receive(pgconn, self._socket)
            self._forgotten = self._named
        # Never a name again: the server may know it although nothing was answered.
        self._named += 1
        name = f"read{self._named}".encode()
        # By the protocol, which poolers know, not by PREPARE.
        pgconn.send_prepare(name, query, key[1])
        await receive(pgconn, self._socket)
        pgconn.send_describe_prepared(name)
        described = await receive(pgconn, self._socket)
        columns = [(described.fname(place) or b"").decode() for place in range(described.nfields)]
        self._kept[key] = name, columns
        return name, columns

    async def _open(self) -> psycopg.AsyncConnection[Any]:
        connection = await connect(
            driver_url(self._url),
            # Planned once, and by index however few rows there were then.
            options=session_options(
                READER_ROLE,
                plan_cache_mode="force_generic_plan",
                enable_seqscan="off",
                statement_timeout=str(self._statement_timeout_ms),
            ),
            application_name="callboard-records",
        )
        connection.adapters.register_loader("uuid", TextLoader)
        self._socket = connection.fileno()
        return connection


@lru_cache(maxsize=1_024)
def _by_number(text: str) -> tuple[bytes, Sequence[str]]:
    """Return a statement with its parameters by number, and their names in this order."""
    numbers: dict[str, int] = {}

    def place(found: re.Match[str]) -> str:
        name = found[1]
        return "%" if name is None else f"${numbers.setdefault(name, len(numbers) + 1)}"

    return _PLACE.sub(place, text).encode(), tuple(numbers)
