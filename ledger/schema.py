"""The tables as SQLAlchemy sees them, for reads alone, and how an address of the database is
written.

Their columns are described in `ledger/tables/`, from which the writes come as well. What the
database makes of them is the DDL in `migrations/`. Spec: Ledger records; money.md (Rules that the
database enforces).
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
from ledger.tables.capability_tables import CAPABILITY_LINE, CAPABILITY_VERSION
from ledger.tables.cluster_tables import MEMBER, SHARD
from ledger.tables.history_tables import (
    AUDIT,
    AUDIT_EVENT,
    AUDIT_PARTY,
    COMMAND,
    HEAD,
)
from ledger.tables.identity_tables import (
    AGENT_NAME,
    FORMER_KEY,
    RECOVERY,
)
from ledger.tables.market_tables import (
    AGENT,
    AGENT_CARD,
    AGENT_LIVE,
    API_KEY,
    CAPABILITY_PRICE,
    DISPUTE,
    FEEDBACK,
    QUOTA,
    REPUTATION,
    REVOCATION,
)
from ledger.tables.money_tables import (
    ACCOUNT,
    ENTRY,
    ESCROW,
    INVOICE,
    INVOICE_LINE,
    STAKE,
)
from ledger.tables.table import Kind, Table
from ledger.tables.work_tables import (
    ATTEMPT,
    AUCTION,
    BID,
    NODE,
    WORKFLOW,
)

SCHEMA: Final = "callboard"
# What a pool raises when Postgres is away, restarting or out of connections.
UNREACHABLE: Final = (OperationalError, InterfaceError, PoolTimeoutError)
WRITER_ROLE: Final = "ledger_writer"
READER_ROLE: Final = "ledger_reader"
OPERATIONAL_ROLE: Final = "ops_writer"

metadata = MetaData(schema=SCHEMA)


def was_ended(error: Exception) -> bool:
    """Say whether the server ended a statement that took longer than it may."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    return isinstance(cause, psycopg.errors.QueryCanceled)


def unreachable(error: Exception) -> ServiceError:
    """Return what a caller gets when Postgres cannot be read: LEDGER_UNAVAILABLE."""
    return ServiceError(
        ErrorCode.LEDGER_UNAVAILABLE, f"the database cannot be reached ({type(error).__name__})"
    )


def driver_url(url: str) -> str:
    """Return a database address as libpq spells it: `postgresql://…`."""
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


def engine_url(url: str) -> str:
    """Return a database address as SQLAlchemy spells it: `postgresql+psycopg://…`."""
    return driver_url(url).replace("postgresql://", "postgresql+psycopg://", 1)


def session_options(role: str, **settings: str) -> str:
    """Return libpq's `options` for a session that acts as this role with these settings."""
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


def _read(table: Table) -> sqlalchemy.Table:
    columns = (Column(column.name, _TYPES[column.kind]()) for column in table.columns)
    return sqlalchemy.Table(table.name, metadata, *columns)


head = _read(HEAD)
account = _read(ACCOUNT)
entry = _read(ENTRY)
escrow = _read(ESCROW)
command = _read(COMMAND)
audit = _read(AUDIT)
audit_event = _read(AUDIT_EVENT)
audit_party = _read(AUDIT_PARTY)
workflow = _read(WORKFLOW)
node = _read(NODE)
attempt = _read(ATTEMPT)
member = _read(MEMBER)
shard = _read(SHARD)
agent = _read(AGENT)
revocation = _read(REVOCATION)
agent_live = _read(AGENT_LIVE)
agent_card = _read(AGENT_CARD)
api_key = _read(API_KEY)
former_key = _read(FORMER_KEY)
agent_name = _read(AGENT_NAME)
recovery = _read(RECOVERY)
capability_price = _read(CAPABILITY_PRICE)
capability_line = _read(CAPABILITY_LINE)
capability_version = _read(CAPABILITY_VERSION)
quota = _read(QUOTA)
stake = _read(STAKE)
reputation = _read(REPUTATION)
auction = _read(AUCTION)
bid = _read(BID)
invoice = _read(INVOICE)
invoice_line = _read(INVOICE_LINE)
dispute = _read(DISPUTE)
feedback = _read(FEEDBACK)
