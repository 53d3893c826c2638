"""Quotas: limits of what a payer may publish. Operators set them, payers read and check them.

The operation `check_quota` only predicts. The ledger enforces a quota when it moves a budget into
escrow (`ledger/features/quotas.py`). Reference: money.md (Quotas), http.md (Request limits).
"""

from __future__ import annotations

from core.market.sharing.quota import QuotaLimits, day_start_ms, judge_quota, resets_at_ms
from core.money import MICRO_PER_CENT
from core.records.api.kinds import Did
from core.records.api.market import Quota, QuotaChange, QuotaCheck, QuotaQuestion, QuotaSet
from core.records.api.shape import ABSENT, value_of
from core.trust.access import SET_QUOTAS
from ledger.features.accounts import quota_row, quota_usage
from ledger.features.quotas import SetQuota
from ledger.reads.reader import RowDict
from serve_app.callers.limits import RateClass
from serve_app.http.calls import Call, Json, Operations
from serve_app.operations.views import iso_time, limits_record, usage_record
from serve_app.operations.visibility import own_did_in_path

OPERATIONS = Operations("market", "ledger")


@OPERATIONS.add("POST", "/v1/quotas/{did}", scope=SET_QUOTAS, body=QuotaChange, reply=QuotaSet)
async def set_quota(call: Call) -> Json:
    """Set the quota of a payer (operators).

    Omitted members keep their value; null removes a limit.
    """
    did = value_of(Did, "did", call.path_values["did"])
    body = call.given(QuotaChange)
    changes = {
        "workflows_per_day": body.max_workflows_per_day,
        "workflows_concurrent": body.max_concurrent_workflows,
        "spend_cents_per_day": body.max_spend_per_day_cents,
    }
    command = SetQuota(
        did=did,
        changes={name: limit for name, limit in changes.items() if limit is not ABSENT},
    )
    outcome = await call.commit(command)
    # Without the usage: the right to set quotas is no right to read what a payer has published.
    limits = limits_record(QuotaLimits(**outcome.result["limits"])) or {}
    return {
        "success": True,
        "id": did,
        "did": did,
        **limits,
        "limits": limits,
        "setByDid": call.caller.did,
        "updatedAt": iso_time(outcome.result["updatedMs"]),
    }


@OPERATIONS.add("GET", "/v1/quotas/{did}", reply=Quota)
async def get_quota(call: Call) -> Json:
    """Read a payer's limits and usage."""
    return await _quota(call, own_did_in_path(call, "the quota"))


@OPERATIONS.add(
    "POST",
    "/v1/quotas/{did}/check",
    scope="ledger:read",
    rate=RateClass.READ,
    body=QuotaQuestion,
    is_body_optional=True,
    reply=QuotaCheck,
)
async def check_quota(call: Call) -> Json:
    """Check the quota of a payer for one more workflow."""
    did = own_did_in_path(call, "the quota")
    cents = call.given(QuotaQuestion).estimated_spend_cents or 0
    reader, now_ms = call.services.reader, call.services.now_ms()
    limits = _limits(await quota_row(reader, did))
    usage = await quota_usage(reader, did, day_start_ms(now_ms))
    verdict = judge_quota(limits, usage, cents * MICRO_PER_CENT)
    return {
        "allowed": verdict.is_allowed,
        "reason": verdict.reason,
        "currentUsage": usage_record(usage),
        "limits": limits_record(limits),
        "resetsAt": iso_time(resets_at_ms(now_ms)),
    }


async def _quota(call: Call, did: str) -> Json:
    reader, now_ms = call.services.reader, call.services.now_ms()
    row = await quota_row(reader, did)
    usage = await quota_usage(reader, did, day_start_ms(now_ms))
    limits = limits_record(_limits(row))
    return {
        "id": did,
        "did": did,
        **(limits or {}),
        "limits": limits,
        "currentUsage": usage_record(usage),
        "resetsAt": iso_time(resets_at_ms(now_ms)),
        "setByDid": None if row is None else row["set_by_did"],
        "updatedAt": None if row is None else iso_time(row["updated_ms"]),
    }


def _limits(row: RowDict | None) -> QuotaLimits | None:
    if row is None:
        return None
    return QuotaLimits(
        row["max_workflows_per_day"],
        row["max_concurrent_workflows"],
        row["max_spend_per_day_cents"],
    )
