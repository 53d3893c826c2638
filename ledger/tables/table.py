"""Rows as the parameters of the function that commits a batch: JSON, one text per write.

A column that a row does not bring has its default. Postgres alone would be cheaper with arrays of a
row's type in its binary format, and the writer so much dearer that the sum is none the less
(decision ledger-writer).

Postgres refuses NUL in texts, and UTF-8 has no lone surrogates: one such character in an agent's
error message must not stop the batch of a thousand others, so it is stored as U+FFFD.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from psycopg.adapt import Dumper
from psycopg.pq import Format

from core.json_text import write_json

# Rows as the parameters of the function that commits a batch: JSON, one text per write. A column
# that a row does not bring has its default. Postgres alone would be cheaper with arrays of a
# row's type in its binary format, and the writer so much dearer that the sum is none the less
# (decision ledger-writer). Postgres refuses NUL in texts, and UTF-8 has no lone surrogates: one
# such character in an agent's error message must not stop the batch of a thousand others, so it
# is stored as U+FFFD.

_NUL: Final = b"\\u0000"


class Encoded(bytes):
    """A parameter as it goes to the server; the statement says its type."""


class EncodedDumper(Dumper):
    """Tells the driver to send what is encoded already as it is."""

    format = Format.BINARY

    def dump(self, obj: Encoded) -> Encoded:
        """Return the parameter."""
        return obj


def encode_json(value: Any) -> Encoded:
    """Return rows as JSON that Postgres takes."""
    try:
        encoded = write_json(value)
    except UnicodeEncodeError:
        return Encoded(write_json(cleaned(value)))
    if _NUL in encoded:
        return Encoded(write_json(cleaned(value)))
    return Encoded(encoded)


def hex_text(value: bytes) -> str:
    """Return bytes as a row holds them: the text that `bytea` is read from."""
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


# What a table is described by: its columns and constraints, each spelt once. From a description
# come the statement that creates the table (the baseline migration), the SQL that writes to it
# (`writes.py`), the encoding of its rows (`ledger/writer/batch.py`) and the table that reads name
# (`ledger/schema.py`). Indexes are in `migrations/baseline/`. Money is BIGINT micro-credits,
# times are BIGINT milliseconds since 1970 (UTC); the unit is the last part of a name.

# A row to be stored, by column; a column that is absent has its default.
Row = dict[str, Any]


class Kind(StrEnum):
    """The type of a column, as the database spells it."""

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
    """A column. `checks`: what follows its type in CREATE TABLE: NOT NULL, its default, checks."""

    name: str
    kind: Kind
    checks: str = ""

    @classmethod
    def of(cls, described: str) -> Column:
        """Return the column that `name type` or `name type checks` describes, as CREATE TABLE."""
        found = _COLUMN.fullmatch(described)
        assert found is not None, f"expected a column's name and type, got {described!r}"
        name, kind, checks = found.groups()
        return cls(name, Kind(kind), checks)

    @property
    def default(self) -> str | None:
        """Return what is stored of a row that brings no value, as SQL; None: NULL."""
        found = _DEFAULT.search(self.checks)
        return found and found[1]

    @property
    def ddl(self) -> str:
        """Return the column's line of CREATE TABLE."""
        return f"{self.name} {self.kind} {self.checks}".rstrip()


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table of the ledger's schema.

    Args:
        name: without the schema's.
        columns: all of them.
        constraints: of the table as a whole, as CREATE TABLE spells them.
        storage: parameters for WITH, as `fillfactor = 70`.
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
        """Return the column of this name."""
        return next(column for column in self.columns if column.name == name)

    @property
    def ddl(self) -> str:
        """Return the statement that creates the table."""
        lines = ",\n    ".join([*(column.ddl for column in self.columns), *self.constraints])
        storage = f" WITH ({self.storage})" if self.storage else ""
        return f"CREATE TABLE callboard.{self.name} (\n    {lines}\n){storage};"
