"""The descriptions of the tables, and what is made of them: the function, its rows, the records."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import Any

import pytest

from core.workflow.events import NodeChanged
from ledger.tables.table import (
    Column,
    Encoded,
    EncodedDumper,
    Kind,
    Row,
    Table,
    encode_json,
    hex_text,
)
from ledger.tables.work_tables import NODE, NODES
from ledger.tables.write_function import FUNCTION, TEXT, WRITES
from ledger.tables.writes import Write, upsert
from tests.conftest import Database
from tests.ledger.checking import connect

ID = "0199c0de-0000-7000-8000-000000000001"


def test_the_function_is_named_by_its_text() -> None:
    assert re.fullmatch(r"callboard\.commit_batch_[0-9a-f]{12}", FUNCTION)
    named = TEXT.replace(FUNCTION, "")
    assert FUNCTION.endswith(hashlib.sha256(named.encode()).hexdigest()[:12])


def test_every_write_has_a_name_of_its_own() -> None:
    assert len({write.name for write in WRITES}) == len(WRITES)


@pytest.mark.parametrize(
    ("role", "may"), [("ledger_writer", True), ("ledger_reader", False), ("ops_writer", False)]
)
def test_the_writer_alone_may_call_the_function(
    shared_database: Database, role: str, may: bool
) -> None:
    query = (
        "SELECT has_function_privilege(%s, oid, 'EXECUTE') FROM pg_proc"
        " WHERE oid::regproc::text = ANY (%s)"
    )
    names = [FUNCTION, FUNCTION.removeprefix("callboard.")]
    with connect(shared_database.superuser_url) as connection:
        assert connection.execute(query, (role, names)).fetchall() == [(may,)]


def test_every_column_of_a_node_has_a_field_of_its_record() -> None:
    """One spelling: `node_row` and the restore of a workflow go by these names."""
    columns = {column.name for column in NODE.columns} - {"workflow_id", "name"}
    assert columns == set(NodeChanged.__struct_fields__) - {"node"}


def test_a_new_column_is_spelt_once() -> None:
    wider = replace(NODE, columns=(*NODE.columns, Column.of("shade integer DEFAULT 7")))
    write = upsert(wider)
    assert write.given[-1] == Column("shade", Kind.INTEGER, "DEFAULT 7")
    flat = " ".join(write.statement.split())
    assert ", shade) SELECT r.workflow_id," in flat
    assert ", coalesce(r.shade, 7) FROM <rows> ON CONFLICT" in flat
    assert flat.endswith(", shade = excluded.shade;")


def test_a_description_with_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match="'bigit' is not a valid Kind"):
        Table.of("node", "attempt bigit")


# -- rows, as the database reads them --------------------------------------------------------------


def read_back(database: Database, write: Write, *rows: Row) -> list[Row]:
    """Send rows as a batch does; return what the database has understood of them."""
    columns = ", ".join(f"{column.name} {column.kind}" for column in write.given)
    with connect(database.superuser_url) as connection:
        connection.adapters.register_dumper(Encoded, EncodedDumper)
        query = f"SELECT row_to_json(r) FROM json_to_recordset(%s::json) AS r({columns})"
        found = connection.execute(query, (encode_json(rows),)).fetchall()  # type: ignore[arg-type]
    return [row for (row,) in found]


VALUES: dict[Kind, tuple[Any, Any]] = {
    Kind.BIGINT: (-(2**63), -(2**63)),
    Kind.BOOLEAN: (True, True),
    Kind.BYTES: (hex_text(b"\x00\xff"), "\\x00ff"),
    Kind.INTEGER: (2**31 - 1, 2**31 - 1),
    Kind.JSON: ({"a": [1, None, "é\x00\ud800"]}, {"a": [1, None, "é\ufffd\ufffd"]}),
    Kind.RATING: ("0.250", 0.25),
    Kind.SMALLINT: (-7, -7),
    Kind.TEXT: ('ü "\\\n\t{}', 'ü "\\\n\t{}'),
    Kind.TEXTS: (("a,b", "", "ü"), ["a,b", "", "ü"]),
    Kind.UUID: (ID, ID),
}


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.name)
def test_rows_are_read_as_they_were_sent(shared_database: Database, write: Write) -> None:
    row = {column.name: VALUES[column.kind][0] for column in write.given}
    understood = {column.name: VALUES[column.kind][1] for column in write.given}
    nothing = dict.fromkeys(understood)
    first = write.given[0].name
    sent = [row, {}, nothing, {first: row[first]}]
    assert read_back(shared_database, write, *sent) == [
        understood, nothing, nothing, {**nothing, first: understood[first]},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "stored"),
    [("a\0b", "a\ufffdb"), ("a\ud800b", "a\ufffdb"), ("\ud83d\ude00", "\U0001f600"), ("", "")],
)
def test_what_postgres_cannot_store_is_replaced(
    shared_database: Database, text: str, stored: str
) -> None:
    (row,) = read_back(shared_database, NODES, {"name": text})
    assert row["name"] == stored


def test_a_value_that_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError):
        encode_json([{"metrics": object()}])
