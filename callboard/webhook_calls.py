"""Requests about webhooks and their deliveries, as data like those of `calls.py`.

Reference: features.md (Webhooks).
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.calls import Call, Steps, _keyed, _one, _segment, sending


@sending("POST", "/v1/webhooks")
def create_webhook(url: str, events: Sequence[str], *, secret: str | None = None) -> None:
    """Create a webhook: audit events are sent to a URL. Only this reply has the signing secret.

    Args:
        events: audit event types, or `*`.
        secret: `whsec_` and base64 of 24 to 64 bytes; None: a new one.
    """


def change_webhook(
    webhook_id: str,
    *,
    new_url: str | None = None,
    events: Sequence[str] | None = None,
    enabled: bool | None = None,
) -> Steps:
    """Change a webhook's URL or events, or pause or enable it; None: unchanged."""
    body = {"url": new_url, "events": events, "enabled": enabled}
    return _changing(webhook_id, **body)


def rotate_webhook_secret(webhook_id: str) -> Steps:
    """Make a new secret, which is in this reply only; for 24 h the previous one signs as well."""
    return _changing(webhook_id, rotateSecret=True)


def delete_webhook(webhook_id: str) -> Steps:
    """Delete a webhook; its undelivered events are not sent."""
    done = {"success": True, "id": webhook_id}
    return _one(Call("DELETE", f"/v1/webhooks/{_segment(webhook_id)}", done=done))


@sending("POST", "/v1/webhooks/{webhook_id}/test")
def test_webhook(webhook_id: str) -> None:
    """Send a message of the type `webhook.test` to the webhook."""


@sending("POST", "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver")
def redeliver(webhook_id: str, delivery_id: str) -> None:
    """Send an ended delivery again, with the same id."""


def _changing(webhook_id: str, **members: object) -> Steps:
    body = {name: value for name, value in members.items() if value is not None}
    path = f"/v1/webhooks/{_segment(webhook_id)}"
    return _one(Call("PATCH", path, body=body, headers=_keyed(None)))
