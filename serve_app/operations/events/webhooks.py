"""Webhooks: create, change, test and delete them, and list their deliveries.

A webhook is bound to the credential with which its owner created it, or last changed or enabled it.
When this credential ends, the webhook is paused. Otherwise events would still go to an address that
was chosen with a revoked key. Only changes that an administrator makes to another owner's webhook
are audited.
Reference: features.md (Webhooks).
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from typing import Any

from core.egress.policy import address_denied
from core.errors import ErrorCode, Problem, ProblemList, ServiceError
from core.records.api.record import PageQuery, Removed
from core.records.api.triggers import (
    DeliveriesQuery,
    DeliveryPage,
    Webhook,
    WebhookChange,
    WebhookDelivery,
    WebhookPage,
    WebhookRequest,
)
from core.records.bounds import is_webhook_url
from core.records.manifest_problems import refused_manifest
from core.trust.access import JWT_KEY_ID, READ_AUDIT
from core.trust.deployment_keys import NONCE_BYTES, KeyPurpose, seal, unseal
from core.trust.did_key import key_of_did
from core.trust.webhook_messages import SECRET_BYTES, webhook_secret
from ledger.features.audit_log import newest_entry_id
from ledger.features.trust import NoteAuditedRead
from ledger.features.webhooks import (
    DAY_MS,
    WEBHOOKS_MAX,
    delivery_row,
    delivery_rows,
    webhook_row,
    webhook_rows,
)
from ledger.reads.reader import RowDict
from serve_app.http.calls import Call, Json, Operations, Repeats, found, invalid, not_found
from serve_app.http.lists import id_after, listed, page_of
from serve_app.operations.agents.endpoints import host_and_port
from serve_app.operations.views import iso_time, shown

OPERATIONS = Operations("webhooks")

_EXPECTED = "an http or https URL with a host and without credentials"
_ALLOWED = "an address that the egress policy allows"


async def check_webhook_url(call: Call, url: str) -> None:
    """Refuse the URL of a webhook whose address the egress policy denies.

    Raises:
        ServiceError: INVALID_REQUEST or POLICY_DENIED.
    """
    place = host_and_port(url)
    if place is None:
        raise invalid("url", url[:200], _EXPECTED)
    reason = await call.services.denied_endpoint(*place, call.caller.did)
    if reason is not None:
        problem = Problem("url", url[:200], _ALLOWED)
        detail = f"the host {place[0]} of the url is not allowed: {reason}"
        raise ServiceError(ErrorCode.POLICY_DENIED, detail, (problem,))


def check_publish_url(url: str | None, egress_allow: Sequence[str]) -> None:
    """Refuse a `webhookUrl` that is not valid or whose host is a denied IP address.

    Host names are not resolved here. Each connection checks the address of its host.

    Raises:
        ServiceError: INVALID_MANIFEST.
    """
    if url is None:
        return
    place = host_and_port(url) if is_webhook_url(url) else None
    if place is not None and _denial(place[0], egress_allow) is None:
        return
    problems = ProblemList()
    problems.append(Problem("webhookUrl", url[:200], _EXPECTED if place is None else _ALLOWED))
    raise refused_manifest(problems)


def _denial(host: str, egress_allow: Sequence[str]) -> str | None:
    """Return why the egress policy denies an IP address; None if it is allowed or a host name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return address_denied(host, egress_allow)


_SECRETS = KeyPurpose.SIGNING_SECRET


@OPERATIONS.add(
    "POST",
    "/v1/webhooks",
    body=WebhookRequest,
    reply=Webhook,
    errors=(ErrorCode.POLICY_DENIED, ErrorCode.QUOTA_EXCEEDED),
    repeats=Repeats.BY_REPLY_ALONE,
)
async def create(call: Call) -> Json:
    """Create a webhook; its secret is shown once.

    The webhook receives audit entries that are committed after its creation and have the caller as
    a party.
    """
    call.require(READ_AUDIT)
    body = call.given(WebhookRequest)
    await check_webhook_url(call, body.url)
    services = call.services
    secret = body.secret or webhook_secret(os.urandom(SECRET_BYTES))
    columns = {
        **_made_with(call),
        "id": services.new_id(),
        "url": body.url,
        "events": body.events,
        "secrets": _sealed(call, secret),
        "after_id": await newest_entry_id(services.reader),
        "created_ms": services.now_ms(),
    }
    row = await services.webhooks.add(call.caller.did, columns)
    if row is None:
        detail = f"{call.caller.did} has {WEBHOOKS_MAX} webhooks, the maximum: delete one first"
        raise ServiceError(ErrorCode.QUOTA_EXCEEDED, detail)
    return _record(row, secret)


@OPERATIONS.add("GET", "/v1/webhooks", query=PageQuery, reply=WebhookPage)
async def list_webhooks(call: Call) -> Json:
    """List webhooks, oldest first."""
    page = page_of(call, call.given(PageQuery))
    rows = await webhook_rows(
        call.services.reader, after=id_after(page), owner_did=call.party_did, **page.rows
    )
    return listed("webhooks", rows, page, lambda row: row["id"], form=_record)


@OPERATIONS.add("GET", "/v1/webhooks/{webhook_id}", reply=Webhook)
async def get(call: Call) -> Json:
    """Read a webhook."""
    return _record(await _own(call, call.path_values["webhook_id"]))


@OPERATIONS.add(
    "PATCH",
    "/v1/webhooks/{webhook_id}",
    body=WebhookChange,
    reply=Webhook,
    errors=(ErrorCode.POLICY_DENIED,),
    repeats=Repeats.BY_REPLY_ALONE,
)
async def change(call: Call) -> Json:
    """Change, pause or enable a webhook, or rotate its secret.

    An owner's change, other than a pause, binds the webhook to the credential of this request.
    """
    body = call.given(WebhookChange)
    row = await _own(call, call.path_values["webhook_id"])
    if body.url or body.events or body.enabled is not None:
        call.require(READ_AUDIT)
    if body.url is not None:
        await check_webhook_url(call, body.url)
    now_ms = call.services.now_ms()
    given: dict[str, Any] = {"url": body.url, "events": body.events}
    changes = {name: value for name, value in given.items() if value is not None}
    if body.enabled or (body.url is not None and body.url != row["url"]):
        changes["failing_ms"] = None
    secret = None
    if body.rotate_secret:
        secret = webhook_secret(os.urandom(SECRET_BYTES))
        kept = unseal(bytes(row["secrets"]), call.services.settings.deployment_keys, _SECRETS)
        former = [] if kept is None else kept.split(" ")[:1]
        changes |= {"secrets": _sealed(call, secret, *former), "former_ends_ms": now_ms + DAY_MS}
    if changes and call.is_party((row["owner_did"],)):
        changes |= _made_with(call)
    if body.enabled is not None:
        changes["pause_reason"] = None if body.enabled else "it is disabled"
    changes["updated_ms"] = now_ms
    changed = await call.services.webhooks.change(row, changes)
    if changed is None:
        raise ServiceError(
            ErrorCode.CONFLICT,
            f"the webhook {row['id']} was deleted, or its secret was rotated, at the same time",
        )
    if body.enabled:
        await call.services.webhooks.resume(str(row["id"]), now_ms=now_ms)
    return _record(changed, secret)


@OPERATIONS.add("DELETE", "/v1/webhooks/{webhook_id}", reply=Removed)
async def delete(call: Call) -> Json:
    """Delete a webhook; its undelivered events are not sent."""
    row = await _own(call, call.path_values["webhook_id"])
    await call.services.webhooks.delete(str(row["id"]), now_ms=call.services.now_ms())
    return {"success": True, "id": str(row["id"])}


@OPERATIONS.add(
    "POST", "/v1/webhooks/{webhook_id}/test", reply=WebhookDelivery, repeats=Repeats.BY_REPLY_ALONE
)
async def test(call: Call) -> Json:
    """Send a message of the type `webhook.test` to a webhook."""
    row = await _own(call, call.path_values["webhook_id"])
    _check_enabled(row)
    services = call.services
    made = await services.webhooks.test(row, services.new_id(), now_ms=services.now_ms())
    return _delivery(made)


@OPERATIONS.add(
    "GET", "/v1/webhooks/{webhook_id}/deliveries", query=DeliveriesQuery, reply=DeliveryPage
)
async def list_deliveries(call: Call) -> Json:
    """List the deliveries of a webhook, newest first.

    A delivery that has ended is listed for 7 days.
    """
    row = await _own(call, call.path_values["webhook_id"])
    query = call.given(DeliveriesQuery)
    page = page_of(call, query)
    rows = await delivery_rows(
        call.services.reader,
        str(row["id"]),
        status=query.status,
        before=id_after(page),
        **page.rows,
    )
    return listed("deliveries", rows, page, lambda one: one["id"], form=_delivery)


@OPERATIONS.add(
    "POST",
    "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver",
    reply=WebhookDelivery,
    repeats=Repeats.BY_REPLY_ALONE,
)
async def redeliver(call: Call) -> Json:
    """Send an ended delivery again, with the same id."""
    webhook_id, delivery_id = call.path_values["webhook_id"], call.path_values["delivery_id"]
    row = await _own(call, webhook_id)
    services = call.services
    delivery = await delivery_row(services.reader, webhook_id, delivery_id)
    found(delivery, f"the delivery {delivery_id}")
    _check_enabled(row)
    made = await services.webhooks.redeliver(delivery_id, now_ms=services.now_ms())
    if made is None:
        detail = f"the delivery {delivery_id} is pending: it is sent without this call"
        raise ServiceError(ErrorCode.CONFLICT, detail)
    return _delivery(made)


async def _own(call: Call, webhook_id: str) -> RowDict:
    """Return a webhook that the caller may read or change.

    If a single right permits a change, the change is audited.

    Raises:
        ServiceError: NOT_FOUND if the webhook does not exist or has another owner.
    """
    row = await webhook_row(call.services.reader, webhook_id)
    if row is None or not call.may((row["owner_did"],)):
        raise not_found(f"the webhook {webhook_id}")
    if call.method != "GET" and call.authority is not None:
        # This note is the only audit entry of the change.
        await call.commit(NoteAuditedRead(operation=f"{call.method} {call.raw_path.decode()}"))
    return row


def _check_enabled(row: RowDict) -> None:
    if row["pause_reason"] is not None:
        detail = f"the webhook is paused: {row['pause_reason']}. Enable it first"
        raise ServiceError(ErrorCode.CONFLICT, detail)


def _made_with(call: Call) -> dict[str, Any]:
    """Return the columns that bind a webhook to the caller's credential.

    They have the id of the API key, or the DID's signing key if it can be replaced. They also have
    the credential's expiry.
    """
    caller, key_id = call.caller, None
    # The key of a did:key cannot be replaced, so the column stays empty.
    is_fixed = key_of_did(caller.did) == caller.signing_key
    if caller.signing_key is None and caller.key_id != JWT_KEY_ID:
        key_id = caller.key_id
    return {
        "signed_key": None if is_fixed else caller.signing_key,
        "key_id": key_id,
        "expires_ms": caller.expires_ms,
    }


def _sealed(call: Call, *secrets: str) -> bytes:
    keys = call.services.settings.deployment_keys
    return seal(" ".join(secrets), keys, os.urandom(NONCE_BYTES), _SECRETS)


def _record(row: RowDict, secret: str | None = None) -> dict[str, Any]:
    return shown(
        Webhook,
        row,
        enabled=row["pause_reason"] is None,
        failing_since=iso_time(row["failing_ms"]),
        previous_secret_ends_at=iso_time(row["former_ends_ms"]),
        secret=secret,
    )


def _delivery(row: RowDict) -> dict[str, Any]:
    is_pending = row["status"] == "pending"
    return shown(
        WebhookDelivery, row, next_attempt_at=iso_time(row["next_ms"]) if is_pending else None
    )
