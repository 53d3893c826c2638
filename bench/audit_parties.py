"""What the index of audit entries by party costs an entry, and what a caller's reads take with it.

Run as `python -m bench.audit_parties [--entries N]`. A Postgres of its own gets workflows of three
nodes through the real store, four entries each. Printed are what indexing them takes, in CPU of
Postgres and of the process that follows; then their rows are copied until there are `--entries`,
and reads of a payer with a twentieth of them, of an agent and of a stranger are timed. Prints;
asserts nothing about times.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import psycopg

from bench.batch_cost import PAYERS, Flows
from bench.load.private_postgres import private_postgres
from ledger.audit.party_index import PartyIndex
from ledger.embedded.server import DATABASE, SUPERUSER, EmbeddedPostgres
from ledger.migrate import migrate
from ledger.reads.reader import LedgerReader

FLOWS: Final = 5_000
TOGETHER: Final = 64
READS: Final = 200
PAYER, AGENT, STRANGER = "did:bench:payer:0", "did:bench:agent:0", "did:bench:stranger"
# Past the writer: the chain's links and hashes are not what is measured. Ids begin with their time.
_COPY: Final = """
    INSERT INTO callboard.audit
    SELECT id + %(shift)s, event_types, actor_did, (
            lpad(to_hex(('x' || left(workflow_id::text, 8))::bit(32)::bigint + %(copy)s), 8, '0')
            || substr(workflow_id::text, 9))::uuid, created_ms, body, hash
    FROM callboard.audit WHERE id BETWEEN 2 AND %(last)s"""
_COPY_PARTIES: Final = """
    INSERT INTO callboard.audit_party
    SELECT party, audit_id + %(shift)s FROM callboard.audit_party
    WHERE audit_id BETWEEN 2 AND %(last)s"""


async def measure(server: EmbeddedPostgres, entries: int) -> None:
    """Make the entries, index and copy them, and read."""
    flows = await Flows.open(server.database_url)
    for _ in range(FLOWS // TOGETHER):
        await flows.run(TOGETHER)
    with psycopg.connect(server.url_for(SUPERUSER, DATABASE), autocommit=True) as asking:
        await _index(server, asking)
        _multiply(asking, entries)
        asking.execute("VACUUM ANALYZE callboard.audit")
        asking.execute("VACUUM ANALYZE callboard.audit_party")
        sizes = asking.execute(
            "SELECT (SELECT count(*) FROM callboard.audit), count(*),"
            " pg_total_relation_size('callboard.audit_party') FROM callboard.audit_party"
        ).fetchone()
        assert sizes is not None
        print(f"{sizes[0]:,} entries, {sizes[1]:,} rows of parties, {sizes[2] >> 20} MiB")
        (workflow_id,) = asking.execute(
            "SELECT workflow_id::text FROM callboard.audit a JOIN callboard.audit_party p"
            " ON p.audit_id = a.id WHERE p.party = %s AND a.id < 10000 AND workflow_id IS NOT NULL"
            " ORDER BY a.id LIMIT 1",
            (PAYER,),
        ).fetchone() or ("",)
    async with LedgerReader(server.database_url, pool_size=2) as reader:
        await _read(reader, workflow_id)


async def _index(server: EmbeddedPostgres, asking: psycopg.Connection[Any]) -> None:
    index = PartyIndex(server.database_url)
    first = await index.index_some()
    (pid,) = asking.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'callboard-parties'"
    ).fetchone() or (0,)
    backend, own, began = _cpu_ns(pid), time.thread_time_ns(), time.perf_counter_ns()
    indexed, steps = first, 0
    while indexed.to < indexed.newest:
        indexed, steps = await index.index_some(), steps + 1
    count = indexed.to - first.to
    spent = (_cpu_ns(pid) - backend, time.thread_time_ns() - own, time.perf_counter_ns() - began)
    names = ("Postgres CPU", "own CPU", "elapsed")
    figures = ", ".join(
        f"{n} {ns / count / 1e3:.1f} us" for n, ns in zip(names, spent, strict=True)
    )
    print(f"indexing {count:,} entries in {steps} steps, per entry: {figures}")
    at_rest = time.perf_counter_ns()
    for _ in range(READS):
        await index.catch_up()
    each_us = (time.perf_counter_ns() - at_rest) / READS / 1e3
    print(f"a read that has nothing to index: {each_us:.0f} us more")
    await index.close()


def _multiply(asking: psycopg.Connection[Any], entries: int) -> None:
    """Copy the entries behind the first, and what is indexed of them, until there are enough."""
    (last,) = asking.execute("SELECT audit_seq FROM callboard.head").fetchone() or (0,)
    asking.execute("ALTER TABLE callboard.audit DISABLE TRIGGER ALL")
    for copy in range(1, entries // last):
        shifted = {"shift": copy * last, "last": last, "copy": copy}
        asking.execute(_COPY, shifted)
        asking.execute(_COPY_PARTIES, shifted)


async def _read(reader: LedgerReader, workflow_id: str) -> None:
    async def whole(did: str) -> None:
        rows = await reader.audit(limit=101)
        await reader.own_audit_ids(did, [row["id"] for row in rows])

    async def own(did: str, **filters: Any) -> None:
        await reader.audit(limit=101, party_did=did, caller=did, **filters)

    paid, rare = {"event_type": "payment.settled"}, {"event_type": "agent.revoked"}
    of_workflow = {"target_type": "workflow", "target_id": workflow_id}
    reads: dict[str, Callable[[], Awaitable[None]]] = {
        "a page without a filter": lambda: whole(PAYER),
        "a payer's payments": lambda: own(PAYER, **paid),
        "a payer's entries of a type without any": lambda: own(PAYER, **rare),
        "a payer's entries of an old workflow": lambda: own(PAYER, **of_workflow),
        "a payer's entries of before": lambda: own(PAYER, end_ms=1),
        "an agent's payments": lambda: own(AGENT, **paid),
        "a stranger's payments": lambda: own(STRANGER, **paid),
    }
    print(f"{PAYERS} payers; {READS} reads each, ms: p50, p99")
    for name, read in reads.items():
        taken = []
        for _ in range(READS):
            began = time.perf_counter_ns()
            await read()
            taken.append((time.perf_counter_ns() - began) / 1e6)
        p99 = statistics.quantiles(taken, n=100)[98]
        print(f"{name:<40} {statistics.median(taken):>8.2f} {p99:>8.2f}")


def _cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def main() -> None:
    """Measure on a Postgres of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with private_postgres(max_connections=20) as server:
        migrate(server.owner_url)
        asyncio.run(measure(server, arguments.entries))


if __name__ == "__main__":
    main()
