"""Reputation on the ledger: counted where a node's end is stored, and counted again from history.

What counts how is `core/market/reputation.py`'s; here stand the rows. Both ways give the same
numbers because both read the same columns: a node's status, error, metrics, and whether its last
attempt was cut off. Spec: Settlement rules 9; contract.md section 6 (Reputation inputs).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sql

from core.errors import ErrorCode, NodeErrorCode
from core.market.reputation import Outcome, Tally
from core.records.audit import AuditEventType
from core.settings import DAY_MS
from core.workflow.events import AttemptFinished, NodeChanged
from core.workflow.node_outcome import outcome_of
from core.workflow.transitions import NodeStatus, is_terminal
from ledger.agents.agent_commands import RebuildReputation
from ledger.commands import Outcome as CommandOutcome
from ledger.reads.pages import changed_pages
from ledger.reads.reader import LedgerReader
from ledger.reads.stored import RowDict
from ledger.schema import reputation
from ledger.tables.market_tables import CORRECTIONS, COUNTS
from ledger.tables.table import Row
from ledger.tables.writes import Write
from ledger.writer.batch import Batch, Refusal
from ledger.writer.command_kind import rows_weight

# The errors of attempts that were cut off by the end of their workflow.
CUT_OFF: Final = (NodeErrorCode.CANCELLED, NodeErrorCode.WORKFLOW_TIMEOUT)
_ENDS: Final = [status.value for status in NodeStatus if is_terminal(status)]
# A latency is a span between two clocks' words: one that was set must not reach a CHECK.
LATENCY_MS_MAX: Final = 30 * DAY_MS
# Nodes that ended after an agent had an attempt of them, grouped by what decides how they count.
HISTORY: Final = f"""
SELECT n.agent_did, n.status, n.error ->> 'code' AS code,
    coalesce((n.error ->> 'isSpared')::boolean, false) AS is_spared,
    EXISTS (
        SELECT 1 FROM callboard.attempt a
        WHERE a.workflow_id = n.workflow_id AND a.node = n.name AND a.attempt = n.attempt
            AND a.kind = 'primary' AND a.error_code = ANY(ARRAY{[c.value for c in CUT_OFF]})
    ) AS was_at_work,
    count(*) AS nodes, coalesce(sum(
        least(greatest((n.metrics ->> 'latency_ms')::bigint, 0), {LATENCY_MS_MAX})
    ), 0)::bigint AS latency_ms
FROM callboard.node n
WHERE n.attempt > 0 AND n.agent_did IS NOT NULL AND n.status = ANY(ARRAY{_ENDS})
GROUP BY 1, 2, 3, 4, 5
"""
# Both in one statement, which sees one moment.
BOTH: Final = f"""
SELECT
    (SELECT coalesce(json_agg(h), '[]') FROM ({HISTORY}) h) AS history,
    (SELECT coalesce(json_agg(r), '[]') FROM callboard.reputation r) AS stored,
    (SELECT audit_seq FROM callboard.head) AS audit_id
"""
# Agents corrected by one command.
CORRECTIONS_MAX: Final = 1_000
_COUNTED: Final = ("successful", "failed", "cancelled", "latency_ms_sum")


def count_end(change: NodeChanged, attempt: AttemptFinished | None, batch: Batch) -> None:
    """Add a node's end to its last agent's counts, if it says something of that agent.

    Args:
        attempt: the node's primary attempt that ended in the same step, if one did.
    """
    if change.attempt == 0 or change.agent_did is None:
        return
    error = change.error or {}
    outcome = outcome_of(
        change.status,
        error.get("code"),
        was_at_work=attempt is not None and attempt.error_code in CUT_OFF,
        is_spared=error.get("isSpared") is True,
    )
    if outcome is None:
        return
    row = _counts(change.agent_did, batch, COUNTS)
    row["total"] += 1
    row[outcome] += 1
    if outcome is Outcome.SUCCESSFUL:
        latency_ms = int((change.metrics or {}).get("latency_ms", 0))
        row["latency_ms_sum"] += min(max(latency_ms, 0), LATENCY_MS_MAX)


def tally_of(row: Mapping[str, Any]) -> Tally:
    """Return a row's counts."""
    return Tally(row["successful"], row["failed"], row["cancelled"], row["latency_ms_sum"])


def tallies_of_history(groups: Iterable[Mapping[str, Any]]) -> dict[str, Tally]:
    """Return every agent's counts, worked out from the groups of `HISTORY`."""
    counts: dict[str, dict[str, int]] = {}
    for group in groups:
        outcome = outcome_of(
            NodeStatus(group["status"]),
            group["code"],
            was_at_work=group["was_at_work"],
            is_spared=group["is_spared"],
        )
        if outcome is None:
            continue
        count = counts.setdefault(group["agent_did"], dict.fromkeys(_COUNTED, 0))
        count[outcome.value] += group["nodes"]
        if outcome is Outcome.SUCCESSFUL:
            count["latency_ms_sum"] += group["latency_ms"]
    return {did: tally_of(count) for did, count in counts.items()}


def compared(
    history: Iterable[Mapping[str, Any]], stored: Iterable[Mapping[str, Any]]
) -> dict[str, tuple[Tally, Tally]]:
    """Return, for every agent of either, its counts as stored and as history gives them."""
    kept = {row["agent_did"]: tally_of(row) for row in stored}
    found = tallies_of_history(history)
    nothing = Tally()
    return {
        did: (kept.get(did, nothing), found.get(did, nothing))
        for did in sorted(kept.keys() | found.keys())
    }


async def read_compared(reader: LedgerReader) -> tuple[dict[str, tuple[Tally, Tally]], int]:
    """Return `compared` of all that is committed, and the newest audit record of that moment."""
    async with reader.turns.turn():
        (row,) = await reader.rows(sql.text(BOTH.replace(":", "\\:")))
    return compared(row["history"], row["stored"]), row["audit_id"]


def corrections(
    counts: Mapping[str, tuple[Tally, Tally]], most: int = CORRECTIONS_MAX
) -> tuple[tuple[str, int, int, int, int], ...]:
    """Return what makes the stored counts of at most `most` agents those of history.

    As differences: what is counted between the reading and the correction is in both.
    """
    changes: list[tuple[str, int, int, int, int]] = []
    for did, (stored, found) in counts.items():
        if stored != found and len(changes) < most:
            successful, failed, cancelled, latency_ms = (
                getattr(found, name) - getattr(stored, name) for name in _COUNTED
            )
            changes.append((did, successful, failed, cancelled, latency_ms))
    return tuple(changes)


def weight_of_rebuild(command: RebuildReputation) -> int:
    """Return what a correction of counts adds to a transaction, in bytes."""
    return rows_weight(len(command.changes))


def plan_rebuild(command: RebuildReputation, batch: Batch) -> CommandOutcome:
    """Add what history has more or less of to the counts, unless that was done meanwhile."""
    cache = batch.cache
    if command.read_audit_id < max(cache.corrected_audit_id, cache.read_audit_id):
        raise Refusal(
            ErrorCode.OVERLOADED, "the counts were just corrected: compare again", retry_after_s=1
        )
    for did, *differences in command.changes:
        # An agent without counts has none too much, so that its differences are not below zero.
        row = _counts(did, batch, COUNTS if min(differences) >= 0 else CORRECTIONS)
        row["total"] += sum(differences[:-1])
        for name, difference in zip(_COUNTED, differences, strict=True):
            row[name] += difference
    audit_id = batch.record(
        AuditEventType.REPUTATION_REBUILT,
        actor_did=command.actor_did,
        target=("reputation", "all"),
        payload={"changed": len(command.changes)},
    )
    cache.corrected_audit_id = audit_id
    result = {"changed": len(command.changes)}
    return batch.decided(command.key, result=result, audit_id=audit_id)


def _counts(did: str, batch: Batch, write: Write) -> Row:
    """Return the row of what a write of the batch adds to an agent's counts."""
    # Owners choose by it.
    batch.is_directory_changed = True
    row = batch.row(write, did)
    if row is None:
        row = {"agent_did": did, "total": 0, **dict.fromkeys(_COUNTED, 0)}
        batch.put(write, did, row)
    return row


def reputation_pages(reader: LedgerReader, *, since_ms: int | None) -> AsyncIterator[list[RowDict]]:
    """Yield the counts that changed at `since_ms` or later, None: all of them, page by page."""
    columns = reputation.c
    return changed_pages(
        reader, sql.select(reputation), columns.agent_did, columns.updated_ms, since_ms
    )
