"""How a batch writes to a table: it inserts, upserts or changes rows.

A write has the columns of its rows and the statement that stores them, generated from the table's
description. In a statement `o` is the stored row and `r` the row of the batch. This
file only builds text; `write_function.py` puts the statements into one function. Decision
ledger-writer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ledger.tables.table import Column, Table

# The time of the batch, as an SQL expression.
NOW: Final = "p_now_ms"
# The id of the newest audit entry, including those of the batch, as an SQL expression. Rows that
# directories cache store it as `changed_id`. A directory reads the rows whose `changed_id` is above
# the newest id that it has seen.
CHANGED: Final = "p_audit_id"
# Placeholders in a statement for its rows and for their number.
ROWS: Final = "<rows>"
COUNT: Final = "<count>"


class Guard(NamedTuple):
    """The error of a statement that does not write each of its rows. The batch then fails."""

    sqlstate: str
    message: str


@dataclass(slots=True, eq=False)
class Write:
    """One way in which a batch writes to a table.

    Args:
        table: the table.
        given: the columns that its rows have.
        statement: the SQL, with the placeholders `ROWS` and `COUNT`.
        is_frequent: whether most batches have such rows.
        is_counted: whether the statement needs the number of rows.
        lines: a text column without line feeds that is sent separately, one line per row, because
            JSON would escape each of its quotes.
        inserted, changed: the columns that the statement inserts and updates.
        name: the name of its rows: that of the constant, in lower case (`write_function.py`).
    """

    table: Table
    given: tuple[Column, ...] = field(repr=False)
    statement: str = field(repr=False)
    is_frequent: bool = False
    is_counted: bool = False
    lines: str | None = None
    inserted: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    name: str = ""


def insert(
    table: Table,
    *,
    fixed: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    is_frequent: bool = False,
    lines: str | None = None,
) -> Write:
    """Return the write that inserts new rows.

    Args:
        fixed: by column, the value of every row as SQL; rows do not have these columns.
        without: columns that get the table's own default.
        lines: as in `Write`.
    """
    fixed = fixed or {}
    stored = [column for column in table.columns if column.name not in without]
    given = tuple(column for column in stored if column.name not in {*fixed, lines})
    statement = _insertion(table, stored, fixed) + ";"
    inserted = tuple(column.name for column in stored)
    return Write(table, given, statement, is_frequent, lines=lines, inserted=inserted)


def upsert(
    table: Table,
    *,
    fixed: Mapping[str, str] | None = None,
    without: Collection[str] = (),
    kept: Collection[str] = (),
    kept_unless_given: Collection[str] = (),
    added: Collection[str] = (),
    only_if: str | None = None,
    guard: Guard | None = None,
    is_frequent: bool = False,
) -> Write:
    """Return the write that inserts rows, or replaces the rows with the same primary key.

    Args:
        fixed: by column, the value of every row as SQL; rows do not have these columns.
        without: columns that get the table's own default in a new row, and NULL in a replaced row.
        kept: columns that a replaced row keeps.
        kept_unless_given: columns that a replaced row keeps if the new row has NULL there.
        added: columns whose values are added to those of the stored row. The values must not be
            negative, because Postgres first checks them as a new row.
        only_if: the condition for replacing a row, as SQL.
        guard: the error if a row may not be replaced.
    """
    fixed = fixed or {}
    stored = [column for column in table.columns if column.name not in without]
    given = tuple(column for column in stored if column.name not in fixed)
    changed = {}
    for column in table.columns:
        value = f"excluded.{column.name}"
        if column.name in table.key or column.name in kept:
            continue
        if column.name in without:
            value = "NULL"
        if column.name in kept_unless_given:
            value = f"coalesce({value}, o.{column.name})"
        if column.name in added:
            value = f"o.{column.name} + {value}"
        changed[column.name] = value
    lines = [
        _insertion(table, stored, fixed),
        f"ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET",
        _settings(changed),
    ]
    if only_if is not None:
        lines.append(f"WHERE {only_if}")
    return Write(
        table,
        given,
        "\n".join(lines) + ";" + _check(guard),
        is_frequent,
        guard is not None,
        inserted=tuple(column.name for column in stored),
        changed=tuple(changed),
    )


def change(
    table: Table,
    given: Sequence[str | Column] = (),
    *,
    key: Sequence[str] = (),
    where: str | None = None,
    computed: Mapping[str, str] | None = None,
    guard: Guard | None = None,
    is_frequent: bool = False,
) -> Write:
    """Return the write that changes stored rows.

    Args:
        given: the columns of the rows besides those of the key. Columns of the table, by name, are
            set; others are described and only used in expressions.
        key: the columns by which a stored row is found; none: the primary key.
        where: the condition for changing a stored row, as SQL; None: no condition.
        computed: by column, the SQL of a value that the statement sets. It replaces a given value
            of the same column.
        guard: the error if a stored row is not found, or may not change.
    """
    computed, key = computed or {}, key or table.key
    columns = [table[one] if isinstance(one, str) else one for one in (*key, *given)]
    changed = {
        one: f"r.{one}" for one in given if isinstance(one, str) and one not in computed
    } | dict(computed)
    conditions = [f"o.{column} = r.{column}" for column in key]
    if where is not None:
        conditions.append(where)
    statement = "\n".join(
        [
            f"UPDATE callboard.{table.name} AS o SET",
            _settings(changed),
            f"FROM {ROWS}",
            f"WHERE {' AND '.join(conditions)};",
        ]
    )
    return Write(
        table,
        tuple(columns),
        statement + _check(guard),
        is_frequent,
        guard is not None,
        changed=tuple(changed),
    )


def _settings(changed: Mapping[str, str]) -> str:
    return ", ".join(f"{column} = {value}" for column, value in changed.items())


def _insertion(table: Table, stored: Iterable[Column], fixed: Mapping[str, str]) -> str:
    columns = list(stored)
    values = [fixed.get(column.name) or _given(column) for column in columns]
    return "\n".join(
        [
            f"INSERT INTO callboard.{table.name} AS o ({', '.join(c.name for c in columns)})",
            f"SELECT {', '.join(values)}",
            f"FROM {ROWS}",
        ]
    )


def _given(column: Column) -> str:
    given = f"r.{column.name}"
    return given if column.default is None else f"coalesce({given}, {column.default})"


def _check(guard: Guard | None) -> str:
    if guard is None:
        return ""
    return f"""
GET DIAGNOSTICS written = ROW_COUNT;
IF written <> {COUNT} THEN
RAISE EXCEPTION '{guard.message}' USING ERRCODE = '{guard.sqlstate}';
END IF;"""
