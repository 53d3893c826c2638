"""The configuration of triggers, and what a run maps of its cause."""

from __future__ import annotations

from typing import Any

import pytest

from core.errors import ServiceError
from core.records.manifest import parse_manifest
from core.records.trigger_config import EventConfig, HookConfig, ScheduledConfig, read_config
from core.workflow.dag import compile_workflow

SECRET = "whsec_" + "A" * 32
CRON = {"cronExpression": "0 9 * * mon-fri"}
EVENT = {"eventType": "workflow.finished"}


def test_defaults() -> None:
    scheduled = read_config("scheduled", CRON)
    assert isinstance(scheduled, ScheduledConfig)
    assert (scheduled.timezone, scheduled.overlap_policy, scheduled.enabled) == (
        "UTC",
        "skip",
        True,
    )
    assert (scheduled.catch_up_window_ms, scheduled.jitter_ms) == (3_600_000, 0)
    webhook, event = read_config("webhook", None), read_config("event", EVENT)
    assert isinstance(webhook, HookConfig)
    assert isinstance(event, EventConfig)
    assert (webhook.secret, webhook.max_runs_per_minute, webhook.max_runs) == (None, 60, None)
    assert (event.filter, event.daily_budget_micro) == ({}, None)


def test_null_is_absent_and_credits_are_micro_credits() -> None:
    read = read_config("webhook", {"name": None, "dailyBudgetCredits": "0.5", "secret": SECRET})
    assert isinstance(read, HookConfig)
    assert (read.name, read.daily_budget_micro, read.secret) == (None, 500_000, SECRET)


DEFECTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "no expression": ("scheduled", {}, "cronExpression"),
    "six fields": ("scheduled", {"cronExpression": "0 0 * * * *"}, "cronExpression"),
    "long expression": ("scheduled", {"cronExpression": "0 " * 51}, "cronExpression"),
    "zone": ("scheduled", {**CRON, "timezone": "Mars"}, "timezone"),
    "policy": ("scheduled", {**CRON, "overlapPolicy": "kill"}, "overlapPolicy"),
    "window": ("scheduled", {**CRON, "catchUpWindowMs": 2_592_000_001}, "catchUpWindowMs"),
    "jitter": ("scheduled", {**CRON, "jitterMs": 3_600_001}, "jitterMs"),
    "no runs": ("scheduled", {**CRON, "maxRuns": 0}, "maxRuns"),
    "a rate of a schedule": ("scheduled", {**CRON, "maxRunsPerMinute": 1}, "maxRunsPerMinute"),
    "no budget": ("webhook", {"dailyBudgetCredits": 0}, "dailyBudgetCredits"),
    "rate": ("webhook", {"maxRunsPerMinute": 601}, "maxRunsPerMinute"),
    "name": ("webhook", {"name": "x" * 101}, "name"),
    "name with NUL": ("webhook", {"name": "a\0"}, "name"),
    "short secret": ("webhook", {"secret": "whsec_" + "A" * 28}, "secret"),
    "secret without prefix": ("webhook", {"secret": "A" * 38}, "secret"),
    "secret in other base64": ("webhook", {"secret": "whsec_" + "-" * 32}, "secret"),
    "a run's member": ("webhook", {"templateId": "x", "result": 1}, "templateId"),
    "no event": ("event", {}, "eventType"),
    "an unknown event": ("event", {"eventType": "workflow.ended"}, "eventType"),
    "an event of a trigger": ("event", {"eventType": "trigger.paused"}, "eventType"),
    "a filter of another form": ("event", {**EVENT, "filter": {"a": {}}}, "filter"),
    "a filter no object": ("event", {**EVENT, "filter": [1]}, "filter"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_named_and_its_secret_is_not_shown(name: str) -> None:
    kind, config, path = DEFECTS[name]
    found = read_config(kind, config)
    assert isinstance(found, list)
    assert found[0].path == f"trigger.config.{path}"
    assert "AAAA" not in str(found)


def stored(kind: str, result: Any) -> dict[str, Any]:
    """A run's manifest, as the service stores it."""
    nodes = {
        "a": {"capabilityId": "cap.x", "inputMappings": {"x": "$.trigger.result.x"}},
        "b": {"capabilityId": "cap.x", "dependsOn": ["a"]},
    }
    config = {"templateId": "t", "version": 1, "depth": 0, "deliveryId": "d", "result": result}
    return {"nodes": nodes, "trigger": {"type": kind, "config": config}}


def test_a_run_carries_what_started_it() -> None:
    compiled = compile_workflow(parse_manifest(stored("webhook", {"x": "é"}), is_stored=True))
    assert compiled.trigger_result == '{"x":"é"}'
    assert compiled.nodes["a"].mappings[0].source == "trigger"
    assert compiled.roots == ("a",)


def test_nobody_publishes_a_run_of_a_trigger() -> None:
    for kind in ("scheduled", "webhook", "event"):
        with pytest.raises(ServiceError) as refusal:
            parse_manifest(stored(kind, {}))
        paths = {problem.path for problem in refusal.value.problems}
        assert {"trigger.config.templateId", "trigger.config.result"} <= paths


@pytest.mark.parametrize("trigger", [None, {"type": "manual"}])
def test_only_a_run_of_a_trigger_has_its_result(trigger: Any) -> None:
    nodes = stored("webhook", {})["nodes"]
    with pytest.raises(ServiceError, match="'trigger', which is not a node"):
        compile_workflow(parse_manifest({"nodes": nodes, "trigger": trigger}))
    compile_workflow(parse_manifest({"nodes": nodes, "trigger": {"type": "webhook"}}))


def test_a_node_of_a_manual_workflow_may_have_the_triggers_name() -> None:
    nodes = {
        "trigger": {"capabilityId": "cap.x"},
        "b": {
            "capabilityId": "cap.x",
            "dependsOn": ["trigger"],
            "inputMappings": {"x": "$.trigger.result"},
        },
    }
    raw = {"nodes": nodes, "trigger": {"type": "manual", "config": {"result": 5}}}
    compiled = compile_workflow(parse_manifest(raw))
    assert compiled.trigger_result is None
    assert compiled.nodes["b"].mappings[0].source == "trigger"
