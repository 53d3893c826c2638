"""What a Postgres server has counted: transactions, rows, bytes of its write-ahead log."""

from __future__ import annotations

import psycopg

# Sessions report what they did within a second of their last transaction.
_COUNTERS = """
SELECT sum(xact_commit)::float8 AS transactions,
       sum(tup_inserted + tup_updated + tup_deleted)::float8 AS rows_written,
       (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8 AS wal_bytes
FROM pg_stat_database
"""


def read_counters(url: str) -> dict[str, float]:
    """Return the counters since the server was made, by name."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(_COUNTERS)
        row = cursor.fetchone()
        assert row is not None
        assert cursor.description is not None
        return {column.name: value for column, value in zip(cursor.description, row, strict=True)}
