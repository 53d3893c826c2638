"""Probes an agent's health: `GET {endpoint}/health`, through the egress gate.

Knows HTTP, not the reason for a probe. An agent that answers is healthy, also without this path,
unless its reply has an unhealthy status. Reference: features.md (Agent interface).
"""

from __future__ import annotations

from collections.abc import Sequence

from core.json_text import NotJson, read_foreign_json
from core.records.statuses import HEARTBEAT_STATUSES, Availability
from federation.http_client import HttpClient, HttpRequest
from federation.http_connection import HttpFailure, HttpFailureKind
from federation.name_resolver import NameResolver

PROBE_TIMEOUT_S = 2.0
BODY_BYTES_MAX = 16_384
NOT_IMPLEMENTED = 501


class HealthProbe:
    """All probes of a process, each on a connection of its own; made inside its event loop.

    Args:
        egress_allow: networks that agents may live in although not public.
        service: the `<service>` of dispatch paths, for endpoints that end in one.
        names: looks agents' names up; closed with this.
        timeout_s: for a whole probe.
    """

    def __init__(
        self,
        egress_allow: Sequence[str],
        service: str,
        names: NameResolver,
        *,
        timeout_s: float = PROBE_TIMEOUT_S,
    ) -> None:
        self._service = service
        self._client = HttpClient(egress_allow, names, keep_alive_s=0)
        self._timeout_s = timeout_s

    async def close(self) -> None:
        """Close what is open."""
        await self._client.close()

    async def is_healthy(self, endpoint: str) -> bool | None:
        """Whether an agent at this address answers without an unhealthy status.

        None: it was not tried, for want of this service's own means.
        """
        url = health_url(endpoint, self._service)
        headers = {"Accept-Encoding": "identity"}
        request = HttpRequest(
            "GET", url, headers, None, self._timeout_s, self._timeout_s, BODY_BYTES_MAX
        )
        try:
            outcome = await self._client.request(request)
        except ValueError:
            return False  # the endpoint is no valid URL
        if isinstance(outcome, HttpFailure):
            if outcome.kind is HttpFailureKind.NOT_TRIED:
                return None
            if outcome.kind is not HttpFailureKind.TOO_LARGE:
                return False
        if outcome.status >= 500:
            return outcome.status == NOT_IMPLEMENTED
        return isinstance(outcome, HttpFailure) or _is_reply_healthy(outcome.body)


def health_url(endpoint: str, service: str) -> str:
    """Return the URL of an agent's health, also when its endpoint is the dispatch path."""
    base = endpoint.rstrip("/")
    if base.endswith("/node"):
        base = base.removesuffix("/node").removesuffix(f"/{service}")
    return f"{base}/health"


def _is_reply_healthy(body: bytes) -> bool:
    """Whether a reply's `status` is a healthy one, or an unknown word, or not to be read."""
    try:
        reply = read_foreign_json(body)
    except NotJson:
        return True
    said = reply.get("status") if isinstance(reply, dict) else None
    word = said.lower() if isinstance(said, str) else ""
    return HEARTBEAT_STATUSES.get(word, Availability.AVAILABLE) is Availability.AVAILABLE
