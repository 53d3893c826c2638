"""What the writer reads of quotas: whose publishes are limited, and what those payers use already.

Nothing for payers it knows, and usage only of payers with a quota; from then on planning counts it.
money.md (Quotas).
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

from core.market.sharing.quota import QuotaLimits
from ledger.connections.connecting import columns_of, fetch
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import StateCache, Usage

# Publishes of yesterday may still arrive just after midnight; older days are read again if ever.
_DAYS_KEPT: Final = 2
# A workflow counts on the UTC day of its publish: with its hold, then with what it has cost. Held
# escrows are those of unfinished workflows.
_USAGE: Final = """
    SELECT d.did, d.day_ms,
        (SELECT count(*) FROM callboard.escrow e WHERE e.payer_did = d.did AND e.status = 'held'),
        count(w.id), coalesce(sum(coalesce(w.spent_micro, w.hold_micro)), 0)::bigint
    FROM unnest(%s::text[], %s::bigint[]) AS d(did, day_ms)
    LEFT JOIN callboard.workflow w ON w.payer_did = d.did
        AND w.created_ms >= d.day_ms AND w.created_ms < d.day_ms + 86400000
    GROUP BY d.did, d.day_ms
"""


async def load_quotas(
    connection: psycopg.AsyncConnection[Any], cache: StateCache, read_set: ReadSet
) -> None:
    """Cache the quotas of a batch's payers, and the usage of those who have one."""
    missing = [did for did, _ in read_set.published if did not in cache.quotas]
    missing += [did for did in read_set.quota_dids if did not in cache.quotas]
    if missing:
        cache.quotas.update(dict.fromkeys(missing))
        rows = await fetch(
            connection,
            "SELECT did, max_workflows_per_day, max_concurrent_workflows, max_spend_per_day_cents"
            " FROM callboard.quota WHERE did = ANY(%s)",
            (missing,),
        )
        for did, *limits in rows:
            cache.quotas[did] = QuotaLimits(*limits)
    for did, _ in read_set.published:
        if did in cache.usage and len(cache.usage[did].days) > _DAYS_KEPT:
            cache.usage[did].days.clear()
    unread = [
        (did, day_ms)
        for did, day_ms in read_set.published
        if (cache.quotas.get(did) is not None or did in read_set.quota_dids)
        and (did not in cache.usage or day_ms not in cache.usage[did].days)
    ]
    if unread:
        rows = await fetch(connection, _USAGE, columns_of(unread))
        for did, day_ms, running, workflows, micro in rows:
            cache.usage.setdefault(did, Usage(running)).days[day_ms] = (workflows, micro)
