"""Hooks: a call of a hook's URL starts a run of its trigger.

A caller needs no API key, so refusals disclose nothing about the owner's money. A repeat of a
refused delivery is refused too. The trigger's owner finds the reason in the list of its runs.
Reference: features.md (Triggers).
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any, Final

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from actors.cluster.due.run_starter import LEFT_DUE, failed_note
from actors.routing.trigger_runs import run_of, run_request, workflow_limits
from actors.transport.messages import PackedPublish, PublishRequest
from actors.transport.wire import packed
from core.errors import ErrorCode, ServiceError
from core.records.api.shape import Schema, Schemas
from core.records.api.triggers import RunStarted
from core.records.bounds import REPEAT_KEY_CHARS_MAX
from core.records.statuses import RunStatus, TriggerStatus
from core.settings import Settings
from core.trust.access import Principal
from core.trust.deployment_keys import KeyPurpose, unseal
from ledger.features.triggers import run_row, trigger_of_token
from ledger.features.workflow_commands import TriggerRun
from ledger.reads.stored import RowDict
from serve_app.callers.limits import RateClass
from serve_app.http.calls import REPLAYED, Call, Operations, Repeats, Reply, invalid, not_found
from serve_app.http.idempotency import body_form
from serve_app.http.paths import HOOK_PATH
from serve_app.http.worker_thread import IN_LOOP_BYTES_MAX, in_thread
from serve_app.operations.work.trigger_making import hook_token_hash

BODY_BYTES_MAX: Final = 64 * 1024
_SIGNED: Final = ("webhook-id", "webhook-timestamp", "webhook-signature")
OPERATIONS = Operations("schedules")


class HookBody:
    """The body of a call of a hook. The run can map it as `$.trigger.result`."""

    @classmethod
    def described_schema(cls, schemas: Schemas) -> Schema:
        """Return the schema: any JSON value."""
        return {"description": "Any JSON value, at most 64 KiB: `$.trigger.result` of the run."}


@OPERATIONS.add(
    "POST",
    "/v1/hooks/{token}",
    scope=None,
    body=HookBody,
    reply=RunStarted,
    errors=(ErrorCode.CONFLICT,),
    repeats=Repeats.BY_HANDLER,
)
async def call_hook(call: Call) -> Reply:
    """Start a run of a webhook trigger.

    1. Find the trigger.
    2. Check the signature if the trigger requires one.
    3. If the delivery has already started a run, skip step 4. Otherwise refuse it if the trigger is
       not active.
    4. Count the new delivery against the trigger's rate limit.
    5. Publish the run. A repeated delivery gets the first reply. The ledger refuses a different
       body under the same delivery id.
    """
    services, token = call.services, call.path_values["token"]
    row = await trigger_of_token(services.reader, hook_token_hash(token))  # 1
    if row is None:
        raise not_found("the hook")
    if len(call.body) > BODY_BYTES_MAX:
        detail = f"the body has {len(call.body)} bytes, at most {BODY_BYTES_MAX}"
        raise ServiceError(ErrorCode.PAYLOAD_TOO_LARGE, detail)
    if row["is_signed"]:
        _check_signature(call, row)  # 2
    delivery = _delivery_of(call)
    run = run_of(row, f"delivery:{delivery}")
    if not await _has_started(call, run):  # 3
        if row["status"] != TriggerStatus.ACTIVE:
            detail = f"the trigger is {row['status']}: {row['reason']}"
            raise ServiceError(ErrorCode.CONFLICT, detail)
        await _count(call, row)  # 4
    cause = {"deliveryId": delivery, "result": call.json}
    return await services.to_the_end(_published(call, row, run, cause))  # 5


async def _published(call: Call, row: RowDict, run: TriggerRun, cause: dict[str, Any]) -> Reply:
    services = call.services
    form = await in_thread(call.account, len(call.body), partial(body_form, call))
    request_hash = hashlib.sha256(form).digest()
    try:
        return await start_run(call, row, run, cause, request_hash=request_hash)
    except ServiceError as error:
        if error.code is ErrorCode.KEY_REUSED:
            # Raises CONFLICT if a concurrent call with this delivery id was refused meanwhile.
            await _has_started(call, run)
            detail = (
                f"delivery {cause['deliveryId']} was already received with a different body:"
                f" use a new {_SIGNED[0]}"
            )
            raise ServiceError(ErrorCode.KEY_REUSED, detail) from None
        if error.code is ErrorCode.CONFLICT:  # Many senders retry after 503 but not after 409.
            detail = "the trigger was changed during the call: repeat it"
            raise ServiceError(ErrorCode.OVERLOADED, detail) from None
        if error.code in LEFT_DUE:
            raise
        await services.gateway.commit(failed_note(run, error))
        raise _refused(error.code) from None


async def start_run(
    call: Call, row: RowDict, run: TriggerRun, cause: dict[str, Any], **others: Any
) -> Reply:
    """Publish a run of a trigger, and return the reply.

    Args:
        call: the request that starts the run.
        row, run, cause, others: as for `run_request`.

    Raises:
        ServiceError: as for `publish` and `run_request`.
    """
    services = call.services
    workflow_id, task_id = services.new_workflow_id(), services.new_id()
    limits = workflow_limits(services.settings)

    def made() -> PublishRequest | PackedPublish:
        request = run_request(
            row, run, cause, limits=limits, workflow_id=workflow_id, task_id=task_id, **others
        )
        return request if len(request.manifest_json) <= IN_LOOP_BYTES_MAX else packed(request)

    size = len(row["manifest"]) + len(call.body)
    reply = await services.gateway.publish(await in_thread(call.account, size, made))
    started = {
        "success": True,
        "id": reply.workflow_id,
        "workflowId": reply.workflow_id,
        "taskId": reply.task_id,
        "templateId": run.trigger_id,
        "status": reply.status,
    }
    return Reply(started, headers=(REPLAYED,) if reply.is_repeat else ())


def hook_url(settings: Settings, row: RowDict) -> str:
    """Return the URL of a hook.

    Raises:
        ServiceError: INTERNAL_ERROR: the stored secret cannot be decrypted.
    """
    return f"{settings.url}{HOOK_PATH}{_token_and_secret(settings, row)[0]}"


def _token_and_secret(settings: Settings, row: RowDict) -> tuple[str, str]:
    text = unseal(bytes(row["secret"]), settings.deployment_keys, KeyPurpose.SIGNING_SECRET)
    if text is None:
        raise ServiceError(ErrorCode.INTERNAL_ERROR, "the secret of the hook cannot be read")
    token, _, secret = text.partition(" ")
    return token, secret


async def _has_started(call: Call, run: TriggerRun) -> bool:
    """Return whether a delivery has started a run.

    Raises:
        ServiceError: CONFLICT: the run of this delivery was refused.
    """
    known = await run_row(call.services.reader, run.trigger_id, run.key)
    if known is not None and known["status"] != RunStatus.STARTED:
        raise _refused(known["reason"])
    return known is not None


def _check_signature(call: Call, row: RowDict) -> None:
    """Check the Standard Webhooks signature over the bytes of the body.

    Raises:
        ServiceError: UNAUTHORIZED.
    """
    _, secret = _token_and_secret(call.services.settings, row)
    headers = {name: call.headers.get(name.encode(), b"").decode("latin-1") for name in _SIGNED}
    try:
        Webhook(secret).verify(call.body, headers, json_parse=False)
    except (WebhookVerificationError, ValueError):  # ValueError: a header has an invalid format.
        detail = (
            "the hook needs a valid Standard Webhooks signature, made in the last 5 minutes:"
            f" {', '.join(_SIGNED)}"
        )
        raise ServiceError(ErrorCode.UNAUTHORIZED, detail) from None


def _delivery_of(call: Call) -> str:
    """Return the id of a delivery: its `webhook-id`, else its idempotency key, else a new id.

    Raises:
        ServiceError: INVALID_REQUEST: the `webhook-id` is empty, too long or not printable ASCII.
    """
    given = call.headers.get(_SIGNED[0].encode())
    if given is None:
        return call.services.new_id() if call.repeat_key is None else call.repeat_key.text
    text = given.decode("latin-1")
    if not 0 < len(text) <= REPEAT_KEY_CHARS_MAX or not (text.isascii() and text.isprintable()):
        expected = f"1 to {REPEAT_KEY_CHARS_MAX} printable ASCII characters"
        raise invalid(_SIGNED[0], f"{len(given)} bytes", expected)
    return text


async def _count(call: Call, row: RowDict) -> None:
    """Count a run against the rate limit of its trigger.

    Raises:
        ServiceError: RATE_LIMITED.
    """
    services, rate = call.services, RateClass.WRITE
    limits = ((str(rate), row["config"]["maxRunsPerMinute"]),)
    principal = Principal(f"trigger:{row['id']}", "hook", frozenset(), rate_limits=limits)
    standing = await services.limiter.take(principal, call.address, rate, services.clock_ms())
    if standing is not None and not standing.is_allowed:
        raise standing.refusal()


def _refused(code: str) -> ServiceError:
    return ServiceError(ErrorCode.CONFLICT, f"the run was refused: {code}")
