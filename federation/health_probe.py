"""Probes an agent's health: `GET {endpoint}/health`, through the egress gate.

An agent that replies is healthy, even if it does not have this path. There are two exceptions: a
reply with an HTTP status of 500 or more (except 501), and a reply whose JSON has an unhealthy
`status`.
Reference: features.md (Agent interface).
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
    """Sends the probes of a process; must be created inside the event loop.

    Each probe has its own connection.

    Args:
        egress_allow: CIDR networks to which connections are allowed although they are not public.
        service: the name of this service in dispatch paths `/<service>/node`, with which some
            endpoints end.
        names: resolves the agents' names; `close` closes it.
        timeout_s: the most time for a whole probe, seconds.
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
        """Cancel all probes, and close their connections."""
        await self._client.close()

    async def is_healthy(self, endpoint: str) -> bool | None:
        """Return whether the agent at an endpoint is healthy.

        None: no probe was sent, because this service lacked a resource.
        """
        url = health_url(endpoint, self._service)
        headers = {"Accept-Encoding": "identity"}
        request = HttpRequest(
            "GET", url, headers, None, self._timeout_s, self._timeout_s, BODY_BYTES_MAX
        )
        try:
            outcome = await self._client.request(request)
        except ValueError:
            return False  # the endpoint is not a valid URL
        if isinstance(outcome, HttpFailure):
            if outcome.kind is HttpFailureKind.NOT_TRIED:
                return None
            if outcome.kind is not HttpFailureKind.TOO_LARGE:
                return False
        if outcome.status >= 500:
            return outcome.status == NOT_IMPLEMENTED
        return isinstance(outcome, HttpFailure) or _is_reply_healthy(outcome.body)


def health_url(endpoint: str, service: str) -> str:
    """Return the health URL of an agent; a dispatch path at the end of the endpoint is removed."""
    base = endpoint.rstrip("/")
    if base.endswith("/node"):
        base = base.removesuffix("/node").removesuffix(f"/{service}")
    return f"{base}/health"


def _is_reply_healthy(body: bytes) -> bool:
    """Return whether the `status` of a reply is healthy, unknown or missing."""
    try:
        reply = read_foreign_json(body)
    except NotJson:
        return True
    said = reply.get("status") if isinstance(reply, dict) else None
    word = said.lower() if isinstance(said, str) else ""
    return HEARTBEAT_STATUSES.get(word, Availability.AVAILABLE) is Availability.AVAILABLE
