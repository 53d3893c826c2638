"""Makes one attempt to send a delivery to a webhook, or to the `webhookUrl` of a publish.

Reference: features.md (Webhooks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from actors.process.loop_clock import SteadyTime
from core.json_text import write_json
from core.records.api.triggers import TEST_EVENT
from core.settings import Settings
from core.timestamps import iso_ms
from core.trust.deployment_keys import KeyPurpose, unseal
from core.trust.webhook_messages import message, publish_secrets, signed_headers
from federation.http_client import HttpClient, HttpRequest
from federation.http_connection import HttpFailure, HttpFailureKind, Outcome
from federation.name_resolver import NameResolver
from ledger.features.audit_log import entry_text
from ledger.features.webhooks import entry_row
from ledger.reads.reader import LedgerReader

Row = Mapping[str, Any]

ATTEMPT_S: Final = 10.0
REPLY_BYTES_MAX: Final = 1_024


def failure_of(outcome: Outcome) -> str | None:
    """Return why an attempt has failed; None if the receiver accepted the message."""
    if isinstance(outcome, HttpFailure) and outcome.kind is not HttpFailureKind.TOO_LARGE:
        return f"{outcome.kind.name}: {outcome.detail}"
    is_taken = 200 <= outcome.status < 300
    return None if is_taken else f"got status {outcome.status}, expected 2xx"


class WebhookSender:
    """Sends deliveries; must be created inside its event loop.

    Args:
        settings: gives the deployment's keys and the egress policy.
        reader: reads committed rows.
        attempt_s: the timeout of a whole attempt, seconds.
    """

    def __init__(
        self, settings: Settings, reader: LedgerReader, *, attempt_s: float = ATTEMPT_S
    ) -> None:
        self._attempt_s = attempt_s
        self._keys = settings.deployment_keys
        self._reader = reader
        self._client = HttpClient(settings.egress_allow, NameResolver())
        self._now_ms = SteadyTime().now_ms

    async def close(self) -> None:
        """Close the connections to receivers."""
        await self._client.close()

    async def send(self, row: Row, webhook: Row | None) -> Outcome:
        """Send a delivery once; return the receiver's reply or the failure.

        Args:
            row: the row of the delivery.
            webhook: the row of the webhook. None: the delivery is for the `webhookUrl` of a
                publish, and its row contains the URL.
        """
        at, shown = iso_ms(row["created_ms"]), write_json({"webhookId": row["target_id"]}).decode()
        event_type, url = row["event_type"], row["address"] if webhook is None else webhook["url"]
        signer_id = row["workflow_id"]
        if event_type != TEST_EVENT:
            entry = await entry_row(self._reader, row["audit_id"])
            shown, signer_id = entry_text(entry), entry["template_id"] or signer_id
        secrets = self._secrets(signer_id, webhook)
        if secrets is None:
            return HttpFailure(HttpFailureKind.NOT_TRIED, "its secret cannot be read")
        body = message(event_type, at, shown)
        headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            **signed_headers(secrets, row["id"], body, at_ms=self._now_ms()),
        }
        most_s, owner_did = self._attempt_s, row["owner_did"]
        request = HttpRequest(
            "POST", url, headers, body, most_s, most_s, REPLY_BYTES_MAX, owner_did
        )
        try:
            return await self._client.request(request)
        except ValueError:
            return HttpFailure(HttpFailureKind.UNREACHABLE, "the URL cannot be requested")

    def _secrets(self, signer_id: str, webhook: Row | None) -> Sequence[str] | None:
        """Return the signing secrets, the current secret first; None if they cannot be read.

        Args:
            signer_id: the argument of `publish_secrets`; used if there is no webhook.
        """
        if webhook is None:
            return publish_secrets(self._keys, signer_id)
        text = unseal(bytes(webhook["secrets"]), self._keys, KeyPurpose.SIGNING_SECRET)
        if text is None:
            return None
        current, *former = text.split(" ")
        still_signs = (webhook["former_ends_ms"] or 0) > self._now_ms()
        return (current, *former) if still_signs else (current,)
