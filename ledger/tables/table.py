"""What a table is described by: its columns, each spelt once.

From a description come the SQL that writes to the table (`writes.py`), the encoding of its rows
(`ledger/writer/batch.py`) and the table that reads name (`ledger/schema.py`). What the database
checks of a column is in the migrations alone. Decision ledger-writer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `default`: what is stored of a row that brings no value, as SQL; None: NULL."""

    name: str
    kind: Kind
    default: str | None = None

    @classmethod
    def of(cls, described: str) -> Column:
        """Return the column that `name kind` or `name kind = default` describes."""
        spelt, _, default = described.partition(" = ")
        name, _, kind = spelt.partition(" ")
        return cls(name, Kind(kind), default or None)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """A table of the ledger's schema: its name and all of its columns."""

    name: str
    columns: tuple[Column, ...] = field(repr=False)

    @classmethod
    def of(cls, name: str, *columns: str) -> Table:
        """Return the table that has these columns, each described as `Column.of` reads it."""
        return cls(name, tuple(map(Column.of, columns)))

    def __getitem__(self, name: str) -> Column:
        """Return the column of this name."""
        return next(column for column in self.columns if column.name == name)
