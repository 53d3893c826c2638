"""Planning quotas: what a payer may publish, checked and counted with the hold of each publish.

The single writer's memory is the counter: parallel publishes are planned one after the other, so
none slips past. Reference: money.md (Quotas), http.md (Request limits). Decision
refunds-disputes-invoices-quotas.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Final

from core.errors import ErrorCode
from core.market.sharing.quota import (
    QuotaLimits,
    QuotaUsage,
    day_start_ms,
    judge_quota,
    resets_at_ms,
)
from core.records.audit import AuditEventType
from ledger.quotas.quota_commands import SetQuota
from ledger.tables.market_tables import QUOTAS
from ledger.workflows.workflow_commands import PublishWorkflow
from ledger.writer.batch import Batch, Refusal, Result
from ledger.writer.command_kind import plans
from ledger.writer.read_set import ReadSet
from ledger.writer.state_cache import Escrow

# Running workflows end at any time; a day's counters only at midnight.
CONCURRENT_RETRY_S: Final = 1


def add_quota_reads(command: SetQuota, read_set: ReadSet) -> None:
    """Add what is looked at before a quota is set."""
    read_set.quota_dids.add(command.did)


@plans(SetQuota, reads=add_quota_reads, outlives_credential=True)
def plan_set_quota(command: SetQuota, batch: Batch) -> Result:
    """Change a payer's limits; those that the command does not name keep their value."""
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
    """Count a publish on its payer's usage; payers without a quota have none.

    Raises: Refusal(QUOTA_EXCEEDED) when it does not fit in, nothing counted.
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
    """Count a workflow's end: what returns is given back to the day of its publish (case 38)."""
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
