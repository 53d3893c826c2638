"""Quotas: what a payer may publish, set by administrators, checked before a publish by anybody.

The check here is advice; what binds is counted with the hold (`ledger/quotas/quota_plan.py`). Spec:
Quota check result, Limits; contract.md section 6 (Quotas); money.md cases 37 and 38.
"""

from __future__ import annotations

from typing import Any, Final

from core.errors import ErrorCode
from core.market.quota import QuotaLimits, day_start_ms, judge_quota, resets_at_ms
from core.money import MICRO_MAX, MICRO_PER_CENT
from core.trust.access import SET_QUOTAS
from ledger.accounts.account_reads import quota_row, quota_usage
from ledger.quotas.quota_commands import SetQuota
from ledger.reads.reader import RowDict
from serve_app.calls import Call, Operation, Repeats, Reply, invalid
from serve_app.fields import refuse_unknown
from serve_app.limits import RateClass
from serve_app.views import iso_time
from serve_app.views_market import limits_record, usage_record
from serve_app.whose import did_in_path, did_of, own_did_in_path

LIMIT_MAX: Final = 10**12
CENTS_MAX: Final = MICRO_MAX // MICRO_PER_CENT
# The members of a quota: the limit each sets, and its largest value.
_LIMITS: Final = {
    "maxWorkflowsPerDay": ("workflows_per_day", LIMIT_MAX),
    "maxConcurrentWorkflows": ("workflows_concurrent", LIMIT_MAX),
    "maxSpendPerDayCents": ("spend_cents_per_day", CENTS_MAX),
}


async def set_quota(call: Call) -> Reply:
    """Limit what a payer may publish; members left out keep their value, null lifts a limit."""
    did = did_of("did", did_in_path(call, 2))
    body = call.object_body()
    refuse_unknown(body, tuple(_LIMITS))
    changes = {
        column: _whole(body, name, most) for name, (column, most) in _LIMITS.items() if name in body
    }
    command = SetQuota(
        key=call.command_key(f"quota:{call.services.new_id()}"),
        actor_did=call.caller.did,
        did=did,
        changes=changes,
    )
    outcome = await call.services.to_the_end(call.services.gateway.commit(command))
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
    did = own_did_in_path(call, 2, "the quota")
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
    did = own_did_in_path(call, 2, "the quota")
    body = {} if call.json is None else call.object_body()
    refuse_unknown(body, ("estimatedSpendCents",))
    cents = _whole(body, "estimatedSpendCents", CENTS_MAX) or 0
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


def _whole(body: dict[str, Any], name: str, most: int) -> int | None:
    value = body.get(name)
    if value is not None and not (type(value) is int and 0 <= value <= most):
        raise invalid(name, str(value)[:100], f"a whole number from 0 to {most}, or null")
    return value


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/quotas/{did}",
        handler=set_quota,
        summary="Limit what a payer may publish, for administrators",
        scope=SET_QUOTAS,
        rate=RateClass.WRITE,
        tag="market",
        request="QuotaRequest",
        reply="Quota",
        parameters=("AccountDid",),
        repeats=Repeats.BY_REPLY,
    ),
    Operation(
        method="GET",
        path="/v1/quotas/{did}",
        handler=get_quota,
        summary="Read a payer's limits and usage",
        scope="ledger:read",
        rate=RateClass.READ,
        tag="market",
        reply="Quota",
        parameters=("AccountDid",),
        errors=(ErrorCode.NOT_FOUND,),
    ),
    Operation(
        method="POST",
        path="/v1/quotas/{did}/check",
        handler=check_quota,
        summary="Ask whether a payer could publish one more workflow",
        scope="ledger:read",
        rate=RateClass.READ,
        tag="market",
        request="QuotaCheckRequest",
        reply="QuotaCheck",
        parameters=("AccountDid",),
        errors=(ErrorCode.NOT_FOUND,),
        is_body_optional=True,
    ),
)
