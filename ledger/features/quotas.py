"""Quotas: limits of a payer's workflows and spending per day, and of its running workflows.

Reference: money.md (Quotas).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final

import psycopg

from core.errors import ErrorCode
from core.market.sharing.quota import (
    QuotaLimits,
    QuotaUsage,
    day_start_ms,
    judge_quota,
    resets_at_ms,
)
from core.records.audit import AuditEventType
from ledger.authority import AuthorizedCommand
from ledger.connections.connect import columns_of, fetch
from ledger.features.workflow_commands import PublishWorkflow
from ledger.tables.market_tables import QUOTAS
from ledger.writer.batch import Batch, Refusal, Result
from ledger.writer.command_kind import keys_of, plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import Escrow, StateCache, Usage


class SetQuota(AuthorizedCommand, frozen=True, kw_only=True):
    """Change the limits of a payer's quota.

    `changes`: new values by field of `QuotaLimits`; None removes a limit, an absent field keeps its
    value. Result: {"updatedMs": int, "limits": all fields of `QuotaLimits`}.
    """

    did: str
    changes: Mapping[str, int | None]


# Loads the usage of payers with a quota, if the state cache lacks it. From then on planning counts
# the usage.

# Publishes of the previous day may arrive just after midnight; older days are loaded when needed.
_DAYS_KEPT: Final = 2
QUOTA_LIMITS: Final = """
    SELECT did, max_workflows_per_day, max_concurrent_workflows, max_spend_per_day_cents
    FROM callboard.quota WHERE did = ANY(%s)
"""
# A workflow counts on the UTC day of its publish, first with its hold, then with its final cost.
# Workflows with held escrows are unfinished.
_USAGE: Final = """
    SELECT d.did, d.day_ms,
        (SELECT count(*) FROM callboard.escrow e WHERE e.payer_did = d.did AND e.status = 'held'),
        count(w.id), coalesce(sum(coalesce(w.spent_micro, w.hold_micro)), 0)::bigint
    FROM unnest(%s::text[], %s::bigint[]) AS d(did, day_ms)
    LEFT JOIN callboard.workflow w ON w.payer_did = d.did
        AND w.created_ms >= d.day_ms AND w.created_ms < d.day_ms + 86400000
    GROUP BY d.did, d.day_ms
"""


async def load_usage(
    connection: psycopg.AsyncConnection[Any], cache: StateCache, read_set: ReadSet
) -> None:
    """Load the usage of a batch's payers that have a quota; the quotas are loaded before."""
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


# Plans. A publish is checked against its payer's quota and counted with its hold. The writer plans
# parallel publishes one after the other, so none can exceed the limits. Reference: http.md (Request
# limits).

# Retry time when too many workflows run, because a workflow may end at any time. The limits of a
# day end at UTC midnight.
CONCURRENT_RETRY_S: Final = 1


@plans(SetQuota, reads=keys_of(quota_dids="did"), outlives_credential=True)
def plan_set_quota(command: SetQuota, batch: Batch) -> Result:
    """Change a payer's limits; limits that the command does not name keep their value."""
    limits = replace(batch.cache.quotas[command.did] or QuotaLimits(), **command.changes)
    batch.cache.quotas[command.did] = limits
    members = {
        "max_workflows_per_day": limits.workflows_per_day,
        "max_concurrent_workflows": limits.workflows_concurrent,
        "max_spend_per_day_cents": limits.spend_cents_per_day,
    }
    row = {"did": command.did, "set_by_did": command.actor_did, **members}
    batch.put(QUOTAS, command.did, row)
    batch.record(
        AuditEventType.QUOTA_SET,
        ("quota", command.did),
        maxWorkflowsPerDay=limits.workflows_per_day,
        maxConcurrentWorkflows=limits.workflows_concurrent,
        maxSpendPerDayCents=limits.spend_cents_per_day,
    )
    return {"updatedMs": batch.now_ms, "limits": asdict(limits)}


def use_quota(command: PublishWorkflow, hold_micro: int, batch: Batch) -> None:
    """Count a publish on its payer's usage, if the payer has a quota.

    Raises: Refusal(QUOTA_EXCEEDED) when the publish exceeds a limit. The publish is not counted
    then.
    """
    usage = batch.cache.usage.get(command.payer_did)
    if usage is None:
        return
    day_ms = day_start_ms(command.created_ms)
    workflows, micro = usage.days[day_ms]
    limits = batch.cache.quotas[command.payer_did]
    if limits is not None:
        _check(limits, QuotaUsage(workflows, micro, usage.running), hold_micro, command, batch)
    usage.days[day_ms] = (workflows + 1, micro + hold_micro)
    usage.running += command.has_hold


def give_back(escrow: Escrow, returned_micro: int, batch: Batch) -> None:
    """Count a workflow's end: subtract the returned credits on the day of its publish."""
    usage = batch.cache.usage.get(escrow.payer_did)
    if usage is None:
        return
    usage.running -= 1
    assert usage.running >= 0, escrow
    day_ms = day_start_ms(escrow.published_ms)
    if day_ms in usage.days:
        workflows, micro = usage.days[day_ms]
        usage.days[day_ms] = (workflows, micro - returned_micro)


def _check(
    limits: QuotaLimits,
    usage: QuotaUsage,
    hold_micro: int,
    command: PublishWorkflow,
    batch: Batch,
) -> None:
    verdict = judge_quota(limits, usage, hold_micro)
    if verdict.is_allowed:
        return
    of_the_day = replace(limits, workflows_concurrent=None)
    if judge_quota(of_the_day, usage, hold_micro).is_allowed:
        retry_after_s = CONCURRENT_RETRY_S
    else:
        left_ms = resets_at_ms(command.created_ms) - batch.clock_ms
        retry_after_s = max(1, -(-left_ms // 1000))
    raise Refusal(ErrorCode.QUOTA_EXCEEDED, verdict.reason, retry_after_s=retry_after_s)
