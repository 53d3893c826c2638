"""Quotas: what a payer may publish, set by administrators, checked before a publish by anybody.

The check here is advice; what binds is counted with the hold (`ledger/quotas/quota_plan.py`). Spec:
Quota check result, Limits; money.md (Quotas).
"""

from __future__ import annotations

from typing import Any

from core.errors import ErrorCode
from core.market.sharing.quota import QuotaLimits, day_start_ms, judge_quota, resets_at_ms
from core.money import MICRO_PER_CENT
from core.records.api.market import Quota, QuotaChange, QuotaCheck, QuotaQuestion, QuotaSet
from core.records.api.path_values import AnyDidPath, DidPath
from core.records.api.shape import ABSENT
from core.trust.access import SET_QUOTAS
from ledger.accounts.account_reads import quota_row, quota_usage
from ledger.quotas.quota_commands import SetQuota
from ledger.reads.reader import RowDict
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Operation, Repeats, Reply
from serve_app.operations.views import iso_time
from serve_app.operations.views_market import limits_record, usage_record
from serve_app.operations.whose import own_did_in_path


async def set_quota(call: Call) -> Reply:
    """Limit what a payer may publish; members left out keep their value, null lifts a limit."""
    did = call.given(DidPath).did
    body = call.given(QuotaChange)
    changes = {
        "workflows_per_day": body.max_workflows_per_day,
        "workflows_concurrent": body.max_concurrent_workflows,
        "spend_cents_per_day": body.max_spend_per_day_cents,
    }
    command = SetQuota(
        key=call.command_key(f"quota:{call.services.new_id()}"),
        actor_did=call.caller.did,
        did=did,
        changes={name: limit for name, limit in changes.items() if limit is not ABSENT},
    )
    outcome = await call.commit(command)
    limits = QuotaLimits(**outcome.result["limits"])
    return Reply(
        {
            "success": True,
            **_quota(did, limits),
            "setByDid": call.caller.did,
            "updatedAt": iso_time(outcome.result["updatedMs"]),
        }
    )


async def get_quota(call: Call) -> Reply:
    """Read a payer's limits and what it uses of them now."""
    did = own_did_in_path(call, "the quota")
    reader, now_ms = call.services.reader, call.services.now_ms()
    row = await quota_row(reader, did)
    usage = await quota_usage(reader, did, day_start_ms(now_ms))
    return Reply(
        {
            **_quota(did, _limits(row)),
            "currentUsage": usage_record(usage),
            "resetsAt": iso_time(resets_at_ms(now_ms)),
            "setByDid": None if row is None else row["set_by_did"],
            "updatedAt": None if row is None else iso_time(row["updated_ms"]),
        }
    )


async def check_quota(call: Call) -> Reply:
    """Say whether a payer could publish one more workflow of this cost now."""
    did = own_did_in_path(call, "the quota")
    cents = call.given(QuotaQuestion).estimated_spend_cents or 0
    reader, now_ms = call.services.reader, call.services.now_ms()
    limits = _limits(await quota_row(reader, did))
    usage = await quota_usage(reader, did, day_start_ms(now_ms))
    verdict = judge_quota(limits, usage, cents * MICRO_PER_CENT)
    return Reply(
        {
            "allowed": verdict.is_allowed,
            "reason": verdict.reason,
            "currentUsage": usage_record(usage),
            "limits": limits_record(limits),
            "resetsAt": iso_time(resets_at_ms(now_ms)),
        }
    )


def _quota(did: str, limits: QuotaLimits | None) -> dict[str, Any]:
    shown = limits_record(limits)
    return {"id": did, "did": did, **(shown or {}), "limits": shown}


def _limits(row: RowDict | None) -> QuotaLimits | None:
    if row is None:
        return None
    return QuotaLimits(
        row["max_workflows_per_day"],
        row["max_concurrent_workflows"],
        row["max_spend_per_day_cents"],
    )


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/quotas/{did}",
        path_values=DidPath,
        handler=set_quota,
        summary="Set the quota of a payer (operators)",
        scope=SET_QUOTAS,
        rate=RateClass.WRITE,
        tag="market",
        body=QuotaChange,
        reply=QuotaSet,
        repeats=Repeats.BY_REPLY,
    ),
    Operation(
        method="GET",
        path="/v1/quotas/{did}",
        path_values=AnyDidPath,
        handler=get_quota,
        summary="Read a payer's limits and usage",
        scope="ledger:read",
        rate=RateClass.READ,
        tag="market",
        reply=Quota,
        errors=(ErrorCode.NOT_FOUND,),
    ),
    Operation(
        method="POST",
        path="/v1/quotas/{did}/check",
        path_values=AnyDidPath,
        handler=check_quota,
        summary="Check the quota of a payer for one more workflow",
        scope="ledger:read",
        rate=RateClass.READ,
        tag="market",
        body=QuotaQuestion,
        reply=QuotaCheck,
        errors=(ErrorCode.NOT_FOUND,),
        is_body_optional=True,
    ),
)
