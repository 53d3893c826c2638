"""SQLAlchemy tables for reads, the two forms of a database URL, and options of database sessions.

The columns come from the descriptions in `ledger/tables/`, as writes and DDL do. Each described
table is an attribute of this module. Reference: money.md (Entries, Rules that the database
enforces).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import psycopg
import sqlalchemy
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.types import TypeEngine

from core.errors import ErrorCode, ServiceError
from ledger.tables.table import Kind, Table
from ledger.tables.write_function import TABLES

SCHEMA: Final = "callboard"
# Errors of a pool when Postgres is away, restarting or out of connections.
UNREACHABLE: Final = (OperationalError, InterfaceError, PoolTimeoutError)
WRITER_ROLE: Final = "ledger_writer"
READER_ROLE: Final = "ledger_reader"
OPERATIONAL_ROLE: Final = "ops_writer"

metadata = MetaData(schema=SCHEMA)


def is_statement_timeout(error: Exception) -> bool:
    """Say whether the server cancelled a statement at its timeout."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    return isinstance(cause, psycopg.errors.QueryCanceled)


def unreachable(error: Exception) -> ServiceError:
    """Return the error for callers when Postgres cannot be reached: LEDGER_UNAVAILABLE."""
    return ServiceError(
        ErrorCode.LEDGER_UNAVAILABLE, f"the database cannot be reached ({type(error).__name__})"
    )


def driver_url(url: str) -> str:
    """Return a database address in the form of libpq: `postgresql://…`."""
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


def engine_url(url: str) -> str:
    """Return a database address in the form of SQLAlchemy: `postgresql+psycopg://…`."""
    return driver_url(url).replace("postgresql://", "postgresql+psycopg://", 1)


def session_options(role: str, **settings: str) -> str:
    """Return libpq's `options` for a session with this role and these settings."""
    pairs = {"role": role, "search_path": SCHEMA, "timezone": "UTC", "jit": "off", **settings}
    return " ".join(f"-c {name}={value}" for name, value in pairs.items())


_TYPES: Final[dict[Kind, Callable[[], TypeEngine[Any]]]] = {
    Kind.BIGINT: BigInteger,
    Kind.BIGINTS: partial(ARRAY, BigInteger),
    Kind.BOOLEAN: Boolean,
    Kind.BYTES: LargeBinary,
    Kind.DOUBLE: Double,
    Kind.INTEGER: Integer,
    Kind.JSON: JSON,
    Kind.RATING: partial(Numeric, 4, 3),
    Kind.SMALLINT: SmallInteger,
    Kind.TEXT: Text,
    Kind.TEXTS: partial(ARRAY, Text),
    Kind.UUID: partial(Uuid, as_uuid=False),
}


def typed(**names: str) -> list[sqlalchemy.BindParameter[Any]]:
    """Return bind parameters by type and name: `typed(bigint="after last", texts="dids")`."""
    return [
        sqlalchemy.bindparam(name, type_=_TYPES[Kind[kind.upper()]]())
        for kind, listed in names.items()
        for name in listed.split()
    ]


def _read(table: Table) -> sqlalchemy.Table:
    columns = (
        Column(column.name, _TYPES[column.kind]())
        for column in table.columns
        if column.name != "one"  # the key of a table with a single row
    )
    return sqlalchemy.Table(table.name, metadata, *columns)


_READ: Final = {table.name: _read(table) for table in TABLES}


def __getattr__(name: str) -> sqlalchemy.Table:
    """Return the table with this name: `from ledger.schema import invoice`."""
    if name not in _READ:
        raise AttributeError(f"ledger.schema has no {name}, and no table is called so")
    return _READ[name]
