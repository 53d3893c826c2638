"""Messages to webhooks: their bytes and signatures, by the package and by hand."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from core.trust.deployment_keys import DeploymentKeys
from core.trust.webhook_messages import (
    message,
    publish_secrets,
    signed_headers,
    webhook_secret,
)

KEYS = DeploymentKeys.parse("ab" * 32)
SECRETS = (webhook_secret(b"n" * 32), webhook_secret(b"o" * 24))


def test_each_secret_signs_the_exact_bytes() -> None:
    body = message("node.failed", "2026-01-31T12:00:00.000Z", '{"id":1,"text":"ü\\u2028"}')
    now_ms = int(time.time() * 1_000)
    headers = signed_headers(SECRETS, "m-1", body, at_ms=now_ms)
    signed = f"m-1.{now_ms // 1_000}.".encode() + body
    by_hand = [
        "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        for key in (b"n" * 32, b"o" * 24)
    ]
    assert headers == {
        "webhook-id": "m-1",
        "webhook-timestamp": str(now_ms // 1_000),
        "webhook-signature": " ".join(by_hand),
    }
    for secret in SECRETS:
        assert Webhook(secret).verify(body, headers) == json.loads(body)
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body + b" ", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(webhook_secret(b"x" * 32)).verify(body, headers)


def test_a_publishs_secret_is_its_own_and_of_each_key_of_the_deployment() -> None:
    (own,) = publish_secrets(KEYS, "w-1")
    assert publish_secrets(KEYS, "w-2") != (own,)
    assert len(base64.b64decode(own.removeprefix("whsec_"))) == 32
    rotated = KEYS.with_next(b"n" * 32).with_newest_in_use()
    new, old = publish_secrets(rotated, "w-1")
    assert old == own != new
