"""Generates the SQL function that commits a batch, and the writer's grants, from the descriptions
of writes.

The function's name contains the hash of its text. So a changed description gives another function,
and the running writers of the previous release still find their function. `ledger.migrate` creates
it.
"""

from __future__ import annotations

import hashlib
from typing import Final

from ledger.tables import (
    cluster_tables,
    federation_tables,
    history_tables,
    identity_tables,
    market_tables,
    money_tables,
    trigger_tables,
    webhook_tables,
    work_tables,
)
from ledger.tables.table import Table
from ledger.tables.writes import CHANGED, COUNT, NOW, ROWS, Write

# A batch is written in the order of these modules and of the definitions in them. Command keys come
# first, because a repeat must fail by its key and not by another constraint. The audit chain comes
# before the money, because an entry names its audit entry.
_DESCRIBED: Final = [
    described
    for module in (
        history_tables,
        work_tables,
        money_tables,
        market_tables,
        identity_tables,
        cluster_tables,
        trigger_tables,
        federation_tables,
        webhook_tables,
    )
    for described in vars(module).items()
]
TABLES: Final = tuple(value for _, value in _DESCRIBED if isinstance(value, Table))
WRITES: Final = tuple(value for _, value in _DESCRIBED if isinstance(value, Write))
for constant, value in _DESCRIBED:
    if isinstance(value, Write):
        value.name = constant.lower()
FREQUENT: Final = tuple(write for write in WRITES if write.is_frequent)
RARE: Final = tuple(write for write in WRITES if not write.is_frequent)


def _parameters(write: Write) -> list[tuple[str, str]]:
    """Return the parameters (name, type) for the rows of a frequent write.

    The writer sends the number of rows, because counting them in SQL would parse the JSON again.
    """
    found = [(f"p_{write.name}", "json")]
    if write.lines is not None:
        found.append((f"p_{write.name}_{write.lines}", "text"))
    if write.is_counted:
        found.append((f"p_{write.name}_count", "integer"))
    return found


# (name, type) in the order of `Batch.parameters`.
PARAMETERS: Final = (
    ("p_epoch", "bigint"),
    (NOW, "bigint"),
    (CHANGED, "bigint"),
    *(parameter for write in FREQUENT for parameter in _parameters(write)),
    ("p_rare", "json"),
    ("p_notice", "text"),
)


def _text(function: str) -> str:
    return _TEXT.format(
        function=function,
        parameters=", ".join(f"{name} {kind}" for name, kind in PARAMETERS),
        frequent="\n".join(map(_frequent, FREQUENT)),
        rare_columns=", ".join(f"{write.name} json" for write in RARE),
        rare="\n".join(map(_rare, RARE)),
        grants="\n".join(_grant(table) for table in dict.fromkeys(write.table for write in WRITES)),
    )


def _frequent(write: Write) -> str:
    name = f"p_{write.name}"
    rows = f"json_to_recordset({name}) AS "
    if write.lines is None:
        return _unless_empty(name, write, f"{rows}r({_columns(write)})", f"{name}_count")
    names = ", ".join([*(column.name for column in write.given), write.lines])
    lines = f"string_to_table({name}_{write.lines}, E'\\n')"
    rows = f"ROWS FROM ({rows}({_columns(write)}), {lines}) AS r({names})"
    return _unless_empty(name, write, rows, f"{name}_count")


def _rare(write: Write) -> str:
    name = f"rare.{write.name}"
    rows = f"json_to_recordset({name}) AS r({_columns(write)})"
    return _unless_empty(name, write, rows, f"json_array_length({name})")


def _columns(write: Write) -> str:
    return ", ".join(f"{column.name} {column.kind}" for column in write.given)


def _unless_empty(name: str, write: Write, rows: str, count: str) -> str:
    statement = write.statement.replace(ROWS, rows).replace(COUNT, count)
    return f"IF {name} IS NOT NULL THEN\n{statement}\nEND IF;"


def _grant(table: Table) -> str:
    """Return the grant of the rights that the statements of batches need on a table."""
    writes = [write for write in WRITES if write.table is table]
    rights = ["SELECT"]
    for right, columns in (
        ("INSERT", [column for write in writes for column in write.inserted]),
        ("UPDATE", [column for write in writes for column in write.changed]),
    ):
        if columns:
            rights.append(f"{right} ({', '.join(dict.fromkeys(columns))})")
    return f"GRANT {', '.join(rights)} ON callboard.{table.name} TO ledger_writer;"


_TEXT: Final = """\
-- A batch of planned commands is one call, one round trip, one transaction. It runs with the
-- caller's rights. Rows of what most batches write are parameters of their own, all others come
-- together in p_rare, by name; NULL, or a name that is absent, stands for no rows.

CREATE FUNCTION {function}({parameters}) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    written bigint;
    rare record;
BEGIN
    -- The fence. The row lock makes a take-over wait for this batch, and this batch for it.
    PERFORM 1 FROM callboard.head WHERE epoch = p_epoch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'ledger writer fenced off' USING ERRCODE = 'CB001';
    END IF;

{frequent}

    IF p_rare IS NOT NULL THEN
        SELECT * INTO rare FROM json_to_record(p_rare) AS r({rare_columns});
{rare}
    END IF;
    IF p_notice IS NOT NULL THEN
        PERFORM pg_notify('callboard_directory', p_notice);
    END IF;
END $$;

REVOKE ALL ON FUNCTION {function} FROM PUBLIC;
GRANT EXECUTE ON FUNCTION {function} TO ledger_writer;
{grants}
"""

_HASH: Final = hashlib.sha256(_text("").encode()).hexdigest()[:12]
FUNCTION: Final = f"callboard.commit_batch_{_HASH}"
TEXT: Final = _text(FUNCTION)


def lock_of(function: str) -> int:
    """Return the key of the advisory lock that processes share while they may call a function."""
    return int(function[-12:], 16)
