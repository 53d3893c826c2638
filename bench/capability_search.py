"""What a search by words costs, by how many agents there are and how many the words hit.

A Postgres of its own; agents are written as rows, past the writer, half of them of one owner, each
with two capabilities. Times are the server's, the median of five. Decision 0172.

Usage: `python -m bench.capability_search [agents ...]`.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import Any

import psycopg
import sqlalchemy as sql

from bench.load.private_postgres import private_postgres
from ledger.agents import capability_search
from ledger.agents.offer_index import OfferIndex
from ledger.embedded.server import OWNER, SERVICE, EmbeddedPostgres
from ledger.migrate import migrate
from ledger.reads.reader import LedgerReader

TIMES = 5
# Words and how many of the agents have them in a capability.
WORDS = {"nothing": "zebra", "one agent": "elephant", "a hundredth": "hundredth", "all": "word"}

_AGENTS = """
    INSERT INTO callboard.agent (did, owner_did, card, endpoint, capability_ids, status, revision,
        registered_ms, updated_ms)
    SELECT 'did:b:' || n, CASE WHEN n % 2 = 0 THEN 'did:b:crowd' ELSE 'did:b:o' || n % 997 END,
        json_build_object('did', 'did:b:' || n, 'capabilities', json_build_array(
            json_build_object('id', 'cap.n' || n || '.v1', 'description', 'Does some word work'
                || CASE WHEN n %% 100 = 0 THEN ' a hundredth' ELSE '' END
                || CASE WHEN n = 7 THEN ' elephant' ELSE '' END),
            json_build_object('id', 'cap.m' || n || '.v1', 'description', 'Other word'))),
        'http://127.0.0.1:9', ARRAY['cap.n' || n || '.v1', 'cap.m' || n || '.v1'], 'active', 1, n, n
    FROM generate_series(%s::int, %s::int) n
"""


async def _explained(reader: LedgerReader, words: str) -> dict[str, Any]:
    values = {"words": words, "limit": 20, "hits_max": capability_search.HITS_MAX}
    query = sql.text(f"EXPLAIN (ANALYZE, FORMAT JSON) {capability_search._SEARCH.text}")
    rows = await reader.searches.rows(query, values, caller="did:b:caller")
    explained: dict[str, Any] = rows[0]["QUERY PLAN"][0]
    return explained


async def _measure(server: EmbeddedPostgres, counts: list[int]) -> None:
    before = 0
    url = server.url_for(SERVICE, "bench")
    offers = OfferIndex(url)
    async with LedgerReader(url, pool_size=1) as reader:
        for count in counts:
            with psycopg.connect(server.url_for(OWNER, "bench"), autocommit=True) as connection:
                connection.execute(_AGENTS.replace("n % ", "n %% "), (before + 1, count))
            began, steps, longest = time.perf_counter(), 0, 0.0
            while True:
                step_began = time.perf_counter()
                if not await offers.index_some():
                    break
                longest = max(longest, time.perf_counter() - step_began)
                steps += 1
            took_s = time.perf_counter() - began
            with psycopg.connect(server.url_for(OWNER, "bench"), autocommit=True) as connection:
                connection.execute("VACUUM ANALYZE callboard.offer")
            print(
                f"{count} agents: {count - before} read in {took_s:.1f} s, {steps} steps,"
                f" the longest {longest * 1e3:.0f} ms"
            )
            before = count
            for name, words in WORDS.items():
                plans = [await _explained(reader, words) for _ in range(TIMES)]
                took = statistics.median(plan["Execution Time"] for plan in plans)
                print(f"  {name}: {took:.2f} ms")
    await offers.close()


def main() -> None:
    """Measure for each count of agents, smallest first."""
    counts = sorted(int(text) for text in sys.argv[1:]) or [10_000, 100_000]
    with private_postgres(shared_buffers_mib=256) as server:
        with psycopg.connect(server.superuser_url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE bench OWNER {OWNER}")
        migrate(server.url_for(OWNER, "bench"))
        asyncio.run(_measure(server, counts))


if __name__ == "__main__":
    main()
