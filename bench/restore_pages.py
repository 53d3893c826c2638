"""What it costs to read the unfinished workflows of 1 to 256 shards, as a member restores them.

Run as `python -m bench.restore_pages [--unfinished N] [--finished N] [--shards N …]
[--without INDEX] [--explain]`.
A Postgres of its own is filled with workflows of one node, spread over all shards; those that are
finished stand between the others. Each line: the first look at sizes, which a page begins with, and
a whole scan. `--without workflow_shard` says what an index is good for. Prints; asserts nothing
about times.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Final

import psycopg
from psycopg import sql
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from bench.load.private_postgres import private_postgres
from core.shards.shard import SHARDS
from ledger.embedded.server import DATABASE, SUPERUSER, EmbeddedPostgres
from ledger.migrate import migrate
from ledger.reads.reader import LedgerReader
from ledger.workflows.unfinished import _SIZES, PageKey, UnfinishedPages

# Times of a repeated figure, of which the median is shown.
REPEATS: Final = 9
# A workflow of version 7 with random bits, each a millisecond after the one before.
_FILL: Final = """
WITH made AS MATERIALIZED (
    SELECT n, (lpad(to_hex(1700000000000 + n), 12, '0') || '7'
        || substr(md5('a' || n), 1, 3) || '8' || substr(md5('b' || n), 1, 15))::uuid AS id
    FROM generate_series(1, %(total)s) AS n),
stored AS (
    INSERT INTO workflow (id, task_id, payer_did, status, intent, manifest, created_ms,
        completed_ms, deadline_ms, estimate_micro, hold_micro, reserved, fee_bps)
    SELECT id, gen_random_uuid(), 'did:bench', CASE WHEN is_open THEN 'running' ELSE 'success' END,
        'bench', %(manifest)s, 1700000000000 + n, CASE WHEN is_open THEN NULL ELSE 1 END,
        1700000600000 + n, 0, 0, '{}', 500
    FROM made, LATERAL (SELECT n %% %(every)s = 0 AS is_open) AS one)
INSERT INTO node (workflow_id, name, status, attempt)
SELECT id, 'a', 'dispatched', 1 FROM made
"""


def fill(server: EmbeddedPostgres, *, unfinished: int, finished: int, without: str) -> None:
    """Store workflows, of which one in so many is unfinished, and drop an index."""
    total = unfinished + finished
    values = {"total": total, "every": total // unfinished, "manifest": '{"nodes":{"a":{}}}' * 50}
    url = server.url_for(SUPERUSER, DATABASE)
    with psycopg.connect(url, autocommit=True, options="-c search_path=callboard") as connection:
        connection.execute(_FILL, values)
        if without:
            connection.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(without)))
        connection.execute("VACUUM ANALYZE")
        row = connection.execute(
            "SELECT count(*), count(DISTINCT get_byte(uuid_send(id), 7)) FROM workflow"
            " WHERE completed_ms IS NULL"
        ).fetchone()
        assert row is not None
        print(f"{row[0]} unfinished of {total} workflows, over {row[1]} shards")


async def scan(reader: LedgerReader, shards: list[int]) -> tuple[float, int, int]:
    """Read all pages; return milliseconds, how many pages, how many workflows."""
    began = time.perf_counter()
    pages, after, found, count = UnfinishedPages(reader, shards), None, 0, 0
    while True:
        page, after = await pages.page(after)
        count += 1
        found += len(page)
        if after is None:
            return (time.perf_counter() - began) * 1_000, count, found


async def measure(url: str, numbers: list[int]) -> None:
    """Print the times for so many shards, spread over all."""
    async with LedgerReader(url, pool_size=1) as reader:
        print(f"{'shards':>6} {'first look ms':>14} {'scan ms':>9} {'pages':>6} {'workflows':>10}")
        for number in numbers:
            shards = list(range(0, SHARDS, SHARDS // number))[:number]
            looks, scans = [], []
            for _ in range(REPEATS):
                pages = UnfinishedPages(reader, shards)
                began = time.perf_counter()
                await pages._look_at_sizes(PageKey(-1, "00000000-0000-0000-0000-000000000000"))
                looks.append((time.perf_counter() - began) * 1_000)
                scans.append(await scan(reader, shards))
            ms, count, found = statistics.median(looks), scans[0][1], scans[0][2]
            whole = statistics.median(one for one, _, _ in scans)
            print(f"{number:>6} {ms:>14.2f} {whole:>9.1f} {count:>6} {found:>10}")


def explain(server: EmbeddedPostgres, number: int) -> None:
    """Print the plan of the first look at sizes."""
    compiled = _SIZES.compile(dialect=PGDialect_psycopg())  # type: ignore[no-untyped-call]
    values = {
        "shards": list(range(number)),
        "after_ms": -1,
        "after_id": "00000000-0000-0000-0000-000000000000",
        "most": 100,
    }
    url = server.url_for(SUPERUSER, DATABASE)
    with psycopg.connect(url, options="-c jit=off") as connection:
        query = f"EXPLAIN (ANALYZE, BUFFERS) {compiled}"
        rows = connection.execute(query.encode(), {**compiled.params, **values})
        print(f"-- {number} shards")
        print("\n".join(line for (line,) in rows))


def main() -> None:
    """Fill a ledger and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unfinished", type=int, default=20_000)
    parser.add_argument("--finished", type=int, default=180_000)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--without", default="", metavar="INDEX")
    parser.add_argument("--explain", action="store_true")
    arguments = parser.parse_args()
    with private_postgres(max_connections=20) as server:
        migrate(server.owner_url)
        fill(
            server,
            unfinished=arguments.unfinished,
            finished=arguments.finished,
            without=arguments.without,
        )
        asyncio.run(measure(server.database_url, arguments.shards))
        if arguments.explain:
            for number in arguments.shards:
                explain(server, number)


if __name__ == "__main__":
    main()
