"""The body and the signature headers of a message to a webhook (Standard Webhooks).

Pure: the caller provides the time and the entropy. Reference: features.md (Webhooks).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from standardwebhooks import Webhook

from core.trust.deployment_keys import DeploymentKeys, KeyPurpose, derived_keys

SECRET_PREFIX: Final = "whsec_"
SECRET_BYTES: Final = 32


def webhook_secret(key: bytes) -> str:
    """Return a key in the form that receivers get: `whsec_` and base64."""
    return SECRET_PREFIX + base64.b64encode(key).decode()


def publish_secrets(keys: DeploymentKeys, signer_id: str) -> tuple[str, ...]:
    """Return the secrets that sign the messages to a `webhookUrl`.

    Args:
        signer_id: the id of the workflow, or the id of the template if a trigger started it.

    Returns: one secret for each accepted key of the deployment; the first one is for the key in
    use.
    """
    made = derived_keys(keys, KeyPurpose.PUBLISH_WEBHOOK)
    return tuple(
        webhook_secret(hmac.new(key, signer_id.encode(), hashlib.sha256).digest()) for key in made
    )


def message(event_type: str, at: str, shown: str) -> bytes:
    """Return the body of a message, which is the same at each attempt of the delivery.

    Args:
        event_type: the type of the event.
        at: the time of the event, ISO 8601.
        shown: the JSON text of the event, an object.
    """
    return f'{{"type":"{event_type}","timestamp":"{at}","data":{shown}}}'.encode()


def signed_headers(
    secrets: Sequence[str], message_id: str, body: bytes, *, at_ms: int
) -> dict[str, str]:
    """Return the headers that prove the sender and the time of a message.

    They contain one signature for each secret.

    Args:
        at_ms: the time of sending, Unix milliseconds.
    """
    at = datetime.fromtimestamp(at_ms // 1_000, UTC)
    text = body.decode()
    signatures = [Webhook(secret).sign(message_id, at, text) for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(at_ms // 1_000),
        "webhook-signature": " ".join(signatures),
    }
