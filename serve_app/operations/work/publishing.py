"""Converts a manifest to a `PublishRequest`: compiles it, checks the payer, creates the ids.

The owner process of the workflow decides everything about agents and money. Reference: features.md
(Workflows).
"""

from __future__ import annotations

from typing import Any, Final

from actors.routing.trigger_runs import workflow_limits
from actors.transport.messages import PackedPublish, PublishReply, PublishRequest
from core.errors import ErrorCode, ServiceError
from core.money import credits_number
from core.records.manifest import WorkflowManifest
from core.trust.access import authority_used, denial
from core.trust.webhook_messages import publish_secrets
from core.workflow.dag import compile_workflow
from core.workflow.traces import read_traceparent
from core.workflow.unused_members import list_ignored
from ledger.authority import Authority
from ledger.features.workflow_commands import PUBLISH_KEY
from serve_app.http.calls import Call
from serve_app.operations.events.webhooks import check_publish_url
from serve_app.services import Services

# The refusals of a publish because of its manifest, its payer's credits or its payer's quota.
PUBLISH_ERRORS: Final = (
    ErrorCode.INVALID_MANIFEST,
    ErrorCode.BUDGET_REQUIRED,
    ErrorCode.INSUFFICIENT_CREDITS,
    ErrorCode.QUOTA_EXCEEDED,
)


def publish_request(
    call: Call,
    manifest: WorkflowManifest,
    manifest_json: bytes,
    *,
    command_key: str = "",
    watcher: str = "",
) -> PublishRequest:
    """Compile a manifest and return the request that publishes it.

    Args:
        call: the caller's request.
        manifest: the parsed manifest.
        manifest_json: the JSON text of the manifest, which the ledger stores.
        command_key: the ledger key from the caller's idempotency key; "" to derive the key from the
            new task id.
        watcher: the replica to notify when the workflow ends; "" for none.

    Raises:
        ServiceError: INVALID_MANIFEST with all problems; FORBIDDEN if the caller may not spend the
            payer's credits.
    """
    services, principal = call.services, call.caller
    compiled = compile_workflow(manifest, workflow_limits(services.settings))
    check_publish_url(manifest.webhook_url, services.settings.egress_allow)
    payer_did = manifest.payer_did or principal.did
    code = denial(principal, None, (payer_did,))
    if code is not None:
        raise ServiceError(code, f"{principal.did} may not spend as {payer_did}")
    right = authority_used(principal, None, (payer_did,))
    task_id = services.new_id()
    return PublishRequest(
        command_key=command_key or f"{PUBLISH_KEY}{task_id}",
        request_hash=call.request_hash,
        actor_did=principal.did,
        workflow_id=services.new_workflow_id(),
        task_id=task_id,
        payer_did=payer_did,
        manifest_json=manifest_json.decode(),
        compiled=compiled,
        is_dry_run=manifest.dry_run,
        watcher=watcher,
        authority=None if right is None else Authority(right, call.reason),
        warnings=list_ignored(manifest, compiled),
        traceparent=read_traceparent(call.traceparent),
        webhook_url=manifest.webhook_url,
    )


def shown_secret(
    services: Services, request: PublishRequest | PackedPublish, workflow_id: str
) -> dict[str, str]:
    """Return the `webhookSecret` member of a publish reply; no member without a `webhookUrl`."""
    if request.webhook_url is None:
        return {}
    secret, *_ = publish_secrets(services.settings.deployment_keys, workflow_id)
    return {"webhookSecret": secret}


def published(
    services: Services, request: PublishRequest | PackedPublish, reply: PublishReply
) -> dict[str, Any]:
    """Return the body of a publish reply. A dry run stores nothing, so its body has no ids."""
    error = {} if reply.error is None else {"error": reply.error}
    if request.is_dry_run:
        return {
            "dryRun": True,
            "status": reply.status,
            "estimatedCredits": credits_number(reply.estimate_micro),
            "holdCredits": credits_number(reply.hold_micro),
            "order": list(reply.candidates),
            "candidates": reply.candidates,
            "unavailable": reply.unavailable,
            "warnings": reply.warnings,
            "waiting": reply.waiting,
            **error,
        }
    return {
        "id": reply.workflow_id,
        "workflowId": reply.workflow_id,
        "taskId": reply.task_id,
        "status": reply.status,
        **error,
        **({"warnings": reply.warnings} if reply.warnings else {}),
        **shown_secret(services, request, reply.workflow_id),
    }
