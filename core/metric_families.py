"""The metric families of `/metrics`: their names, labels and descriptions.

Each process counts in dictionaries. A key stands for one series: the name of the family, then the
values of its labels. The last element of a histogram's key is the upper bound of a bucket in
seconds, or `sum`. No label names a tenant. Reference: operations.md (Metrics).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final, NamedTuple

Key = tuple[str, ...]


class Family(NamedTuple):
    """All series of one name.

    `kind`: counter, gauge or histogram. `name`: the name of a counter has no `_total`, but the
    names of its samples have it.
    """

    name: str
    kind: str
    meaning: str
    labels: tuple[str, ...] = ()


class Report(NamedTuple):
    """The counters of one process since its start, and the current values of its gauges.

    `process`: an id that is unique among all processes, past ones included.
    """

    process: str
    counters: Mapping[Key, float]
    gauges: Mapping[Key, float]


QUEUE, DISPATCH, VERIFICATION, SETTLEMENT = "queue", "dispatch", "verification", "settlement"
SUM: Final = "sum"
STAGES: Final = "callboard_stage_seconds"
_BOUNDS_MS: Final = (
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000,
)  # fmt: skip
STAGE_BOUNDS: Final = (*(f"{bound / 1_000:g}" for bound in _BOUNDS_MS), "+Inf")
_BUCKETS: Final = {
    stage: [(STAGES, stage, bound) for bound in STAGE_BOUNDS]
    for stage in (QUEUE, DISPATCH, VERIFICATION, SETTLEMENT)
}

FAMILIES: Final = (
    Family("callboard_workflows_published", "counter", "Workflows that were stored"),
    Family("callboard_workflows_finished", "counter", "Workflows that ended", ("status",)),
    Family("callboard_nodes_finished", "counter", "Nodes that ended", ("status",)),
    Family("callboard_attempts", "counter", "Attempts that ended", ("kind", "outcome")),
    Family("callboard_payments", "counter", "Payments to agents and verifiers"),
    Family("callboard_paid_credits", "counter", "Credits of these payments, fees included"),
    Family(STAGES, "histogram", "Time that attempts spent in a stage", ("stage",)),
    Family("callboard_ledger_batches", "counter", "Batches that the ledger committed"),
    Family("callboard_ledger_commands", "counter", "Commands in these batches"),
    Family("callboard_ledger_commit_seconds", "counter", "Time that these commits took"),
    Family("callboard_ledger_refused", "counter", "Commands that the ledger could not apply"),
    Family("callboard_ledger_reopened", "counter", "Connections of the writer that were lost"),
    Family("callboard_requests", "counter", "Requests to the API", ("class", "status")),
    Family("callboard_refusals", "counter", "Refused requests", ("code",)),
    Family(
        "callboard_peer_heartbeats", "counter", "Signed heartbeats that peers sent", ("outcome",)
    ),
    Family("callboard_workflows", "gauge", "Unfinished workflows", ("status",)),
    Family("callboard_workflows_quarantined", "gauge", "Quarantined workflows"),
    Family(
        "callboard_nodes", "gauge", "Nodes of unfinished workflows that have begun", ("status",)
    ),
    Family("callboard_escrows_held", "gauge", "Escrows of unfinished workflows"),
    Family("callboard_escrow_held_credits", "gauge", "Credits in these escrows"),
    Family("callboard_issued_credits", "gauge", "Credits that were deposited in all"),
    Family("callboard_peers", "gauge", "Peers, by the age of their heartbeats", ("status",)),
    Family("callboard_clearing_credits", "gauge", "Credits in the clearing accounts of peers"),
    Family("callboard_dispatch_queued", "gauge", "Dispatches that wait for their agent"),
    Family("callboard_dispatch_in_flight", "gauge", "Dispatches that were sent and not answered"),
    Family("callboard_dispatch_accepted", "gauge", "Dispatches whose agent answered 202"),
    Family("callboard_circuits_open", "gauge", "Open circuits, summed over owners"),
    Family("callboard_owner_queued_commands", "gauge", "Commands that wait in owners"),
    Family("callboard_ledger_queued_commands", "gauge", "Commands that wait in the ledger"),
    Family("callboard_ledger_lag_seconds", "gauge", "Age of the batch under way"),
    Family("callboard_ledger_epoch", "gauge", "Epoch of the writer"),
    Family("callboard_ledger_entries", "gauge", "Newest ledger entry"),
    Family("callboard_shards", "gauge", "Shards, by `held` and `unheld`", ("state",)),
    Family("callboard_processes", "gauge", "Processes that answer", ("kind",)),
    Family("callboard_books_agree", "gauge", "1 while the newest check of the books found nothing"),
    Family("callboard_books_checked_entry", "gauge", "Entry up to which the books were checked"),
    Family("callboard_books_checked_timestamp_seconds", "gauge", "Time of that check"),
    Family("callboard_audit_entries", "gauge", "Newest audit entry"),
    Family("callboard_audit_checkpoint_size", "gauge", "Entries under the newest checkpoint"),
    Family("callboard_audit_checkpoint_timestamp_seconds", "gauge", "Time of that checkpoint"),
)


def note_stage(counters: dict[Key, float], stage: str, took_ms: int) -> None:
    """Add one duration to the histogram of a stage.

    Args:
        took_ms: the duration in milliseconds. A negative duration counts as 0, because start and
            end may come from different clocks.
    """
    buckets = _BUCKETS[stage]
    key, total = buckets[bisect_left(_BOUNDS_MS, took_ms)], (STAGES, stage, SUM)
    counters[key] = counters.get(key, 0) + 1
    counters[total] = counters.get(total, 0) + max(took_ms, 0) / 1_000
