"""Builds the request that publishes a run, from a trigger and the cause of the run.

The timekeeper and the API's operations on triggers use this module. It reads and stores nothing.
Reference: features.md (Triggers, Schedules).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors.transport.messages import PublishRequest
from core.json_text import read_json, write_json
from core.records.manifest import parse_manifest
from core.settings import Settings
from core.workflow.dag import WorkflowLimits, compile_workflow
from ledger.authority import Authority
from ledger.features.triggers import credential_of
from ledger.features.workflow_commands import TriggerRun, run_command_key
from ledger.reads.stored import RowDict


def workflow_limits(settings: Settings) -> WorkflowLimits:
    """Return the limits and defaults of manifests according to the settings."""
    return WorkflowLimits(
        nodes_max=settings.nodes_max,
        max_runtime_ms_max=settings.max_runtime_ms_max,
    )


def run_of(row: RowDict, key: str, **others: Any) -> TriggerRun:
    """Return a run of a trigger, with the values of the trigger's row.

    Args:
        row: the row of the trigger.
        key: the key that names the cause.
        others: fields of `TriggerRun` that the row does not contain.
    """
    return TriggerRun(
        trigger_id=str(row["id"]),
        key=key,
        version=row["version"],
        credential=credential_of(row["owner_did"], row["signed_key"], row["key_id"]),
        **others,
    )


def run_request(
    row: RowDict,
    run: TriggerRun,
    cause: Mapping[str, Any],
    *,
    limits: WorkflowLimits,
    workflow_id: str,
    task_id: str,
    actor_did: str = "",
    authority: Authority | None = None,
    request_hash: bytes = b"",
) -> PublishRequest:
    """Return the request that publishes a run.

    Args:
        row: the row of the run's trigger.
        run: the result of `run_of`.
        cause: further members of the run's `trigger.config`: `dueAt`, `deliveryId` or `auditId`,
            and `result`, which the nodes can map.
        limits: the limits and defaults of manifests.
        workflow_id, task_id: the new ids.
        actor_did, authority: the caller, if the caller is not the trigger's owner, and the caller's
            single right.
        request_hash: a repeated request with the same key must have the same hash.

    Raises:
        ServiceError: INVALID_MANIFEST when the template is no longer valid.
    """
    config = {
        "templateId": run.trigger_id,
        "version": run.version,
        "depth": run.depth,
        **cause,
    }
    trigger = {"type": row["kind"], "config": config}
    manifest_json = write_json({**read_json(row["manifest"]), "trigger": trigger})
    manifest = parse_manifest(read_json(manifest_json), is_stored=True)
    return PublishRequest(
        command_key=run_command_key(run.trigger_id, run.key),
        request_hash=request_hash,
        actor_did=actor_did or row["owner_did"],
        workflow_id=workflow_id,
        task_id=task_id,
        payer_did=row["owner_did"],
        manifest_json=manifest_json.decode(),
        compiled=compile_workflow(manifest, limits),
        authority=authority,
        run=run,
        webhook_url=manifest.webhook_url,
    )
