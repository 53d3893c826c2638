"""Descriptions of tables, and the encoding of rows as parameters of the commit function.

A table's columns and constraints are written once. Four things are generated from the description:
the CREATE TABLE of the baseline migration, the SQL of writes (`writes.py`), the encoding of rows
(`ledger/writer/batch.py`) and the SQLAlchemy table for reads (`ledger/schema.py`). Indexes are in
`migrations/baseline/`. Money is BIGINT micro-credits, times are BIGINT milliseconds since 1970
(UTC); the last part of a column's name is its unit.

Rows are sent as JSON, one text per write. Binary arrays of row types would take less time in
Postgres, but more time in the writer, and more in total (decision ledger-writer). Postgres refuses
NUL in texts, and UTF-8 has no lone surrogates. One such character in an agent's error message must
not stop a batch of a thousand commands, so it is stored as U+FFFD.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from psycopg.adapt import Dumper
from psycopg.pq import Format

from core.json_text import write_json

_NUL: Final = b"\\u0000"


class Encoded(bytes):
    """A parameter that is encoded already. The statement states its SQL type."""


class EncodedDumper(Dumper):
    """Makes the driver send encoded parameters unchanged."""

    format = Format.BINARY

    def dump(self, obj: Encoded) -> Encoded:
        """Return the parameter unchanged."""
        return obj


def encode_json(value: Any) -> Encoded:
    """Return rows as JSON that Postgres accepts."""
    try:
        encoded = write_json(value)
    except UnicodeEncodeError:
        return Encoded(write_json(cleaned(value)))
    if _NUL in encoded:
        return Encoded(write_json(cleaned(value)))
    return Encoded(encoded)


def hex_text(value: bytes) -> str:
    """Return bytes as the text that Postgres reads as `bytea`."""
    return "\\x" + value.hex()


def cleaned(value: Any) -> Any:
    """Return the value with NUL and lone surrogates in texts replaced by U+FFFD."""
    if isinstance(value, str):
        text = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text.replace("\x00", "\ufffd")
    if isinstance(value, dict):
        return {cleaned(key): cleaned(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(member) for member in value]
    return value


# A row to be stored, by column name; an absent column gets its default.
Row = dict[str, Any]


class Kind(StrEnum):
    """The type of a column, as in SQL."""

    BIGINT = "bigint"
    BIGINTS = "bigint[]"
    BOOLEAN = "boolean"
    BYTES = "bytea"
    DOUBLE = "double precision"
    INTEGER = "integer"
    JSON = "json"
    RATING = "numeric(4,3)"
    SMALLINT = "smallint"
    TEXT = "text"
    TEXTS = "text[]"
    UUID = "uuid"


_COLUMN: Final = re.compile(r"(\w+) (double precision|\S+) ?(.*)")
_DEFAULT: Final = re.compile(r"DEFAULT (\S+)")


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `checks`: its NOT NULL, default and checks, as in CREATE TABLE."""

    name: str
    kind: Kind
    checks: str = ""

    @classmethod
    def of(cls, described: str) -> Column:
        """Return the column for a line of CREATE TABLE: `name type` or `name type checks`."""
        found = _COLUMN.fullmatch(described)
        assert found is not None, f"expected a column's name and type, got {described!r}"
        name, kind, checks = found.groups()
        return cls(name, Kind(kind), checks)

    @property
    def default(self) -> str | None:
        """The SQL value that the column gets if a row lacks it; None: NULL."""
        found = _DEFAULT.search(self.checks)
        return found and found[1]

    @property
    def ddl(self) -> str:
        """The column's line of CREATE TABLE."""
        return f"{self.name} {self.kind} {self.checks}".rstrip()


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table of the ledger's schema.

    Args:
        name: without the schema's name.
        columns: all columns.
        constraints: constraints of the table, as in CREATE TABLE.
        storage: parameters for WITH, for example `fillfactor = 70`.
    """

    name: str
    columns: tuple[Column, ...] = field(repr=False)
    constraints: tuple[str, ...] = field(default=(), repr=False)
    storage: str = field(default="", repr=False)

    @classmethod
    def of(cls, name: str, *described: str, storage: str = "") -> Table:
        """Return the table with these lines of CREATE TABLE; constraints begin in upper case."""
        columns = tuple(Column.of(line) for line in described if line[0].islower())
        constraints = tuple(line for line in described if line[0].isupper())
        return cls(name, columns, constraints, storage)

    def __getitem__(self, name: str) -> Column:
        """Return the column with this name."""
        return next(column for column in self.columns if column.name == name)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the primary key."""
        for column in self.columns:
            if "PRIMARY KEY" in column.checks:
                return (column.name,)
        listed = next(one for one in self.constraints if one.startswith("PRIMARY KEY"))
        return tuple(listed.removeprefix("PRIMARY KEY (").removesuffix(")").split(", "))

    @property
    def ddl(self) -> str:
        """The statement that creates the table."""
        lines = ",\n    ".join([*(column.ddl for column in self.columns), *self.constraints])
        storage = f" WITH ({self.storage})" if self.storage else ""
        return f"CREATE TABLE callboard.{self.name} (\n    {lines}\n){storage};"
