"""Requests about schedules and triggers, as data like those of `calls.py`.

Reference: features.md (Triggers, Schedules).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callboard.calls import Call, Steps, _keyed, _one, _segment, sending
from core.records.api.shape import json_name


@sending("POST", "/v1/schedules")
def create_schedule(
    name: str,
    cron_expression: str,
    workflow_template: Mapping[str, Any],
    *,
    timezone: str | None = None,
    max_runs: int | None = None,
    overlap_policy: str | None = None,
    catch_up_window_ms: int | None = None,
    jitter_ms: int | None = None,
    daily_budget_credits: float | str | None = None,
    enabled: bool | None = None,
    idempotency_key: str | None = None,
) -> None:
    """Create a schedule; its runs are paid by the caller.

    Args:
        cron_expression: five fields as in cron.
        workflow_template: a manifest, or `{"capability": …, "input": {…}}`.
        timezone: of the expression, an IANA name; None: UTC.
        overlap_policy: `skip`, `queue` or `allow`: what a due time does while a run has not ended.
        daily_budget_credits: most that the runs of one UTC day may hold.
    """


@sending("POST", "/v1/schedules/{schedule_id}/trigger")
def start_run(schedule_id: str, *, idempotency_key: str | None = None) -> None:
    """Start a run of a schedule now; no due time moves."""


@sending("GET", "/v1/schedules/{schedule_id}/next")
def due_times(schedule_id: str, *, n: int | None = None) -> None:
    """Read the next due times of a schedule.

    Args:
        n: how many, 1 to 100; None: 10.
    """


def create_trigger(manifest: Mapping[str, Any], *, idempotency_key: str | None = None) -> Steps:
    """Store a template and its trigger; the reply to one of type `webhook` has the `hookUrl`.

    Args:
        manifest: the workflow manifest of the runs; its `trigger` is not manual.
    """
    path, headers = "/v1/workflows/publish", _keyed(idempotency_key)
    return _one(Call("POST", path, body=dict(manifest), headers=headers))


def call_hook(hook_url: str, payload: Any, *, idempotency_key: str | None = None) -> Steps:
    """Start a run of a webhook trigger, one for each idempotency key.

    Args:
        hook_url: of the trigger; the client calls its own service.
        payload: a JSON value, which the run's nodes map as `$.trigger.result`.
    """
    path = f"/v1/hooks/{_segment(hook_url.rpartition('/')[2])}"
    return _one(Call("POST", path, body=payload, headers=_keyed(idempotency_key)))


def change_trigger(trigger_id: str, **changes: Any) -> Steps:
    """Change members of a trigger, such as a schedule; None restores a default.

    Args:
        changes: by the names of the members in Python's spelling, such as `enabled`.
    """
    body = {json_name(name): value for name, value in changes.items()}
    return _one(Call("PATCH", f"/v1/triggers/{_segment(trigger_id)}", body=body))


def delete_trigger(trigger_id: str) -> Steps:
    """End a trigger, such as a schedule; its runs go on."""
    return _one(Call("DELETE", f"/v1/triggers/{_segment(trigger_id)}"))
