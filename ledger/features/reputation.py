"""Tallies behind reputations: counted when a node's end is stored, and recounted from history.

The owner process decides how a node's end counts (`core/workflow/rules/node_ends.py`), and the
decision is stored with the node. So counting and recounting give the same numbers. Reference:
money.md (Reputation).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sql

from core.errors import ErrorCode
from core.market.reputation import Outcome, Tally
from core.records.audit import AuditEventType
from core.settings import DAY_MS
from core.workflow.events import NodeChanged
from ledger.features.agents import RebuildReputation
from ledger.reads.reader import LedgerReader
from ledger.tables.market_tables import CORRECTIONS, COUNTS
from ledger.tables.table import Row
from ledger.tables.writes import Write
from ledger.writer.batch import Batch, Refusal, Result
from ledger.writer.command_kind import plans

# Limits a latency. It is a difference of two clocks. If one clock was set meanwhile, the difference
# may violate a CHECK.
LATENCY_MS_MAX: Final = 30 * DAY_MS
# Nodes whose end counts, grouped by agent, outcome and whether the price is above 0.
HISTORY: Final = f"""
SELECT agent_did, counts_as, price_micro > 0 AS is_paid, count(*) AS nodes, coalesce(sum(
    least(greatest((metrics ->> 'latency_ms')::bigint, 0), {LATENCY_MS_MAX})
), 0)::bigint AS latency_ms
FROM callboard.node WHERE counts_as IS NOT NULL GROUP BY 1, 2, 3
"""
# History and stored tallies in one statement, so both are of the same snapshot.
BOTH: Final = f"""
SELECT
    (SELECT coalesce(json_agg(h), '[]') FROM ({HISTORY}) h) AS history,
    (SELECT coalesce(json_agg(r), '[]') FROM callboard.reputation r) AS stored,
    (SELECT audit_seq FROM callboard.head) AS audit_id
"""
# Maximum number of agents that one command corrects.
CORRECTIONS_MAX: Final = 1_000
_COUNTED: Final = ("successful", "failed", "cancelled", "latency_ms_sum")
# The same columns for nodes with a price above 0.
_PAID: Final = tuple(f"paid_{name}" for name in _COUNTED)


def count_end(change: NodeChanged, batch: Batch) -> None:
    """Add a node's end to the tally of its last agent, if it counts."""
    if change.counts_as is None:
        return
    assert change.agent_did is not None, change.node
    latency_ms = int((change.metrics or {}).get("latency_ms", 0))
    latency_ms = min(max(latency_ms, 0), LATENCY_MS_MAX)
    row = _counts(change.agent_did, batch, COUNTS)
    row["total"] += 1
    _add(row, change.counts_as, is_paid=change.price_micro > 0, nodes=1, latency_ms=latency_ms)


def _add(
    counts: dict[str, Any], outcome: str, *, is_paid: bool, nodes: int, latency_ms: int
) -> None:
    """Add nodes with the same outcome to a tally's columns."""
    for prefix in ("", "paid_") if is_paid else ("",):
        counts[f"{prefix}{outcome}"] += nodes
        if outcome == Outcome.SUCCESSFUL:
            counts[f"{prefix}latency_ms_sum"] += latency_ms


def tally_of(row: Mapping[str, Any]) -> Tally:
    """Return the tally in a row."""
    return Tally(*(row[name] for name in (*_COUNTED, *_PAID)))


def tallies_of_history(groups: Iterable[Mapping[str, Any]]) -> dict[str, Tally]:
    """Return every agent's tally, computed from the groups of `HISTORY`."""
    counts: dict[str, dict[str, int]] = {}
    for group in groups:
        _add(
            counts.setdefault(group["agent_did"], dict.fromkeys((*_COUNTED, *_PAID), 0)),
            group["counts_as"],
            is_paid=group["is_paid"],
            nodes=group["nodes"],
            latency_ms=group["latency_ms"],
        )
    return {did: tally_of(count) for did, count in counts.items()}


def compared(
    history: Iterable[Mapping[str, Any]], stored: Iterable[Mapping[str, Any]]
) -> dict[str, tuple[Tally, Tally]]:
    """Return (stored tally, tally of history) by agent, for every agent that has one of them."""
    kept = {row["agent_did"]: tally_of(row) for row in stored}
    found = tallies_of_history(history)
    nothing = Tally()
    return {
        did: (kept.get(did, nothing), found.get(did, nothing))
        for did in sorted(kept.keys() | found.keys())
    }


async def read_compared(reader: LedgerReader) -> tuple[dict[str, tuple[Tally, Tally]], int]:
    """Return `compared` for all committed rows, and the newest audit id in the same snapshot."""
    async with reader.turns.turn():
        (row,) = await reader.rows(sql.text(BOTH.replace(":", "\\:")))
    return compared(row["history"], row["stored"]), row["audit_id"]


def corrections(
    counts: Mapping[str, tuple[Tally, Tally]], most: int = CORRECTIONS_MAX
) -> dict[str, dict[str, int]]:
    """Return the differences that correct the stored tallies of at most `most` agents.

    A correction adds a difference, because nodes that end between reading and correcting change
    both sides.
    """
    wrong = [(did, *both) for did, both in counts.items() if both[0] != both[1]]
    return {
        did: {name: getattr(found, name) - getattr(stored, name) for name in (*_COUNTED, *_PAID)}
        for did, stored, found in wrong[:most]
    }


@plans(RebuildReputation)
def plan_rebuild(command: RebuildReputation, batch: Batch) -> Result:
    """Add the differences to the stored tallies, unless tallies were corrected meanwhile."""
    cache = batch.cache
    if command.read_audit_id < max(cache.corrected_audit_id, cache.read_audit_id):
        raise Refusal(
            ErrorCode.OVERLOADED,
            "the counts changed during the comparison: repeat the request",
            retry_after_s=1,
        )
    for did, differences in command.changes.items():
        # COUNTS may insert a row, so it needs differences that are not negative.
        row = _counts(did, batch, COUNTS if min(differences.values()) >= 0 else CORRECTIONS)
        row["total"] += sum(differences.get(outcome, 0) for outcome in Outcome)
        for name, difference in differences.items():
            row[name] += difference
    audit_id = batch.record(
        AuditEventType.REPUTATION_REBUILT, ("reputation", "all"), changed=len(command.changes)
    )
    cache.corrected_audit_id = audit_id
    return {"changed": len(command.changes)}


def _counts(did: str, batch: Batch, write: Write) -> Row:
    """Return the batch's row by which a write changes an agent's tally; add it if it is absent."""
    # Owner processes select agents by reputation, so their directories must load it.
    batch.is_directory_changed = True
    row = batch.row(write, did)
    if row is None:
        row = {"agent_did": did, "total": 0, **dict.fromkeys((*_COUNTED, *_PAID), 0)}
        batch.put(write, did, row)
    return row
