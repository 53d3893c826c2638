"""Converts requests to the commands that create and change triggers with their templates.

This module decides nothing about agents or money: the owner process of each run does. Reference:
features.md (Triggers, Schedules).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from typing import Any, Final

from msgspec import structs

from actors.routing.trigger_runs import workflow_limits
from core.errors import ErrorCode, Problem, ProblemList, ServiceError
from core.json_text import write_json
from core.money import credits_number
from core.records.api.shape import refused
from core.records.manifest import WorkflowManifest, parse_list_form, parse_manifest
from core.records.manifest_problems import refused_manifest
from core.records.statuses import TriggerKind, TriggerStatus
from core.records.trigger_config import (
    TRIGGER_NAME_CHARS_MAX,
    HookConfig,
    ScheduledConfig,
    TriggerConfig,
    read_config,
)
from core.triggers.due import next_due_of
from core.trust.access import READ_AUDIT
from core.trust.deployment_keys import NONCE_BYTES, KeyPurpose, seal
from core.workflow.dag import compile_workflow
from ledger.commands import Outcome
from ledger.features.triggers import count_triggers
from ledger.features.workflow_commands import ChangeTrigger, CreateTrigger, TriggerTerms
from ledger.reads.stored import RowDict
from serve_app.http.calls import Call, invalid
from serve_app.operations.events.webhooks import check_publish_url

# The name of the only node of a template that has the short form: capability and input.
NODE: Final = "task"
# Members of a configuration that are stored in columns of their own, not in the column `config`.
_COLUMNS: Final = {"name", "max_runs", "daily_budget_micro", "enabled", "secret"}
# Members of a configuration that determine the due times.
_TIMES: Final = ("cronExpression", "timezone")
_TOKEN_BYTES: Final = 32
WORKFLOWS_WRITE: Final = "workflows:write"


async def create_trigger(call: Call, command: CreateTrigger) -> Outcome:
    """Create a trigger if the caller has fewer triggers than the maximum.

    Concurrent requests may exceed the maximum, because the triggers are counted before the commit.

    Raises:
        ServiceError: CONFLICT: the caller has too many triggers.
    """
    count = await count_triggers(call.services.reader, call.caller.did)
    # The ledger compares the count with the maximum, because only the ledger recognises a repeat. A
    # repeat is never refused because of the count.
    return await call.commit(structs.replace(command, count=count))


def new_schedule(call: Call, given: dict[str, Any]) -> CreateTrigger:
    """Return the command that creates a schedule.

    Args:
        call: the request.
        given: the body: the members of the configuration, and `workflowTemplate`.

    Raises:
        ServiceError: INVALID_REQUEST or INVALID_MANIFEST with all problems, under the names of the
            body's members; FORBIDDEN: the template names another payer.
    """
    kind = TriggerKind.SCHEDULED
    config, manifest_json = _judged(call, kind, given, call.caller.did, is_new=True)
    return _created(call, kind, config, manifest_json, "")


def new_template(call: Call, manifest: WorkflowManifest, given: dict[str, Any]) -> CreateTrigger:
    """Return the command that creates the trigger of a published manifest.

    Args:
        call: the publish.
        manifest: the parsed and compiled manifest; its trigger is not manual.
        given: the same manifest as JSON.

    Raises:
        ServiceError: FORBIDDEN: the manifest names another payer; INSUFFICIENT_SCOPE.
    """
    kind = TriggerKind(manifest.trigger.type)
    _check_rights(call, kind)
    config = read_config(kind, manifest.trigger.config)
    assert isinstance(config, TriggerConfig), "it was checked with the manifest"
    manifest_json = _stored_template(manifest, given, call.caller.did)
    name = manifest.intent[:TRIGGER_NAME_CHARS_MAX] or kind
    return _created(call, kind, config, manifest_json, name)


def changed_trigger(call: Call, row: RowDict, given: dict[str, Any]) -> ChangeTrigger:
    """Return the command that changes a trigger.

    Args:
        call: the request.
        row: the trigger's row.
        given: the body: the members to change; null restores the default of a member.

    Raises:
        ServiceError: as for `new_schedule`; INSUFFICIENT_SCOPE.
    """
    _check_rights(call, row["kind"])
    if "secret" in given:
        expected = "nothing: the secret of a hook cannot change, create a new hook"
        raise invalid("secret", "a value", expected)
    budget_micro = row["daily_budget_micro"]
    asked: dict[str, Any] = {
        **row["config"],
        "name": row["name"],
        "maxRuns": row["max_runs"],
        "dailyBudgetCredits": None if budget_micro is None else credits_number(budget_micro),
        "enabled": row["status"] == TriggerStatus.ACTIVE,
        **given,
    }
    config, manifest_json = _judged(call, row["kind"], asked, row["owner_did"], is_new=False)
    terms = _terms(call, config, manifest_json, row["name"])
    has_same_times = all(terms.config.get(one) == row["config"].get(one) for one in _TIMES)
    return ChangeTrigger(
        trigger_id=str(row["id"]),
        version=row["version"],
        changes=tuple(given),
        terms=terms,
        keeps_due=has_same_times and row["status"] == TriggerStatus.ACTIVE,
    )


def _check_rights(call: Call, kind: str) -> None:
    """Refuse a caller that may not create a trigger of this kind.

    An event trigger requires `audit:read`, because its runs receive the audit entries.

    Raises:
        ServiceError: INSUFFICIENT_SCOPE.
    """
    call.require(WORKFLOWS_WRITE)
    if kind == TriggerKind.EVENT:
        call.require(READ_AUDIT)


def hook_token_hash(token: str) -> bytes:
    """Return the stored hash of a hook's token. Tokens have 256 random bits and need no salt."""
    return hashlib.sha256(token.encode()).digest()


def _created(
    call: Call, kind: TriggerKind, config: TriggerConfig, manifest_json: str | None, name: str
) -> CreateTrigger:
    hook: dict[str, Any] = {}
    if isinstance(config, HookConfig):
        token, is_signed = secrets.token_urlsafe(_TOKEN_BYTES), config.secret is not None
        text = f"{token} {config.secret}" if is_signed else token
        keys, nonce = call.services.settings.deployment_keys, os.urandom(NONCE_BYTES)
        secret = seal(text, keys, nonce, KeyPurpose.SIGNING_SECRET)
        hook = {"token_hash": hook_token_hash(token), "secret": secret, "is_signed": is_signed}
    return CreateTrigger(
        request_hash=call.request_hash,
        trigger_id=call.services.new_id(),
        kind=kind,
        terms=_terms(call, config, manifest_json, name),
        **hook,
    )


def _terms(call: Call, config: TriggerConfig, manifest_json: str | None, name: str) -> TriggerTerms:
    stored = config.model_dump(mode="json", by_alias=True, exclude=_COLUMNS)
    is_schedule = isinstance(config, ScheduledConfig)
    return TriggerTerms(
        name=config.name or name,
        config=stored,
        manifest_json=manifest_json,
        max_runs=config.max_runs,
        daily_budget_micro=config.daily_budget_micro,
        is_enabled=config.enabled,
        due_ms=next_due_of(stored)(call.services.now_ms()) if is_schedule else None,
        expires_ms=call.caller.expires_ms,
    )


def _judged(
    call: Call, kind: str, given: dict[str, Any], owner_did: str, *, is_new: bool
) -> tuple[TriggerConfig, str | None]:
    """Check a body, and return the configuration and the JSON text of the template.

    Args:
        call: the request.
        kind: the kind of the trigger.
        given: the configuration's members and `workflowTemplate`.
        owner_did: the owner of the trigger.
        is_new: whether the body creates a trigger. Then a name and a template are required. For a
            change without a template, the returned text is None.

    Raises:
        ServiceError: as for `new_schedule`.
    """
    config = {name: one for name, one in given.items() if name != "workflowTemplate"}
    name, raw = config.get("name"), given.get("workflowTemplate")
    manifest_json: str | None = None
    found, refuse = ProblemList(), refused
    if is_new and name is None:
        found.append(Problem("name", "nothing", "a name"))
    read = read_config(kind, config, path="")
    found.extend(read if isinstance(read, list) else ())
    if is_new or raw is not None:
        try:
            manifest_json = _judged_template(call, kind, raw, str(name), owner_did)
        except ServiceError as error:
            if not error.problems:
                raise
            refuse = refused_manifest
            for one in error.problems:
                path = f"workflowTemplate.{one.path}".removesuffix(".")
                found.append(Problem(path, one.got, one.expected))
    if isinstance(read, list) or found:
        raise refuse(found)
    return read, manifest_json


def _judged_template(call: Call, kind: str, raw: Any, name: str, owner_did: str) -> str:
    """Check a template, and return the JSON text to store.

    Raises:
        ServiceError: INVALID_REQUEST or INVALID_MANIFEST with all problems; FORBIDDEN: the template
            names a payer that is not the trigger's owner.
    """
    found, template = ProblemList(), _template_of(raw, name)
    if isinstance(template, dict):
        if template.get("trigger") not in (None, {"type": "manual"}):
            expected = "no trigger: the request itself configures the trigger"
            found.append(Problem("trigger", "a trigger", expected))
        if template.get("dryRun"):
            found.append(Problem("dryRun", "true", "false: a template does not run now"))
        template = {**template, "trigger": {"type": str(kind)}}
    try:
        # `is_stored` skips the check of the trigger's configuration, which the template lacks.
        manifest = parse_manifest(template, is_stored=True)
        compile_workflow(manifest, workflow_limits(call.services.settings))
        check_publish_url(manifest.webhook_url, call.services.settings.egress_allow)
    except ServiceError as error:
        found.extend(error.problems)
        raise refused_manifest(found) if found else error from None
    if found:
        raise refused_manifest(found)
    return _stored_template(manifest, template, owner_did)


def _template_of(raw: Any, name: str) -> Any:
    """Return the manifest of a `workflowTemplate`, not checked yet.

    Args:
        raw: a manifest, a manifest in list form, or the short form: `capability` and `input`.
        name: the trigger's name, which becomes the intent of a workflow in short form.

    Raises:
        ServiceError: INVALID_REQUEST or INVALID_MANIFEST.
    """
    if not isinstance(raw, dict) or "nodes" in raw:
        if isinstance(raw, dict) and isinstance(raw["nodes"], list):
            return parse_list_form(raw).to_json()
        return raw
    unknown = next((one for one in raw if one not in ("capability", "input")), None)
    if unknown is not None:
        raise invalid(unknown[:100], "an unknown member", "capability, input")
    given = {"capabilityId": raw.get("capability"), "payload": raw.get("input")}
    return {
        "intent": name,
        "nodes": {NODE: {k: one for k, one in given.items() if one is not None}},
    }


def _stored_template(manifest: WorkflowManifest, given: dict[str, Any], owner_did: str) -> str:
    """Return a template's JSON text to store: the manifest without `trigger` and `dryRun`.

    Raises:
        ServiceError: FORBIDDEN: the manifest names a payer that is not the trigger's owner.
    """
    if manifest.payer_did not in (None, owner_did):
        detail = f"a trigger runs as its owner, {owner_did}: got payerDid {manifest.payer_did}"
        raise ServiceError(ErrorCode.FORBIDDEN, detail)
    kept = {name: one for name, one in given.items() if name not in ("trigger", "dryRun")}
    return write_json(kept).decode()
