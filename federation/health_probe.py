"""Probes an agent's health: `GET {endpoint}/health`, through the egress gate.

Knows HTTP, not the reason for a probe. An agent that answers is healthy, also without this path,
unless its reply has an unhealthy status. Spec: Agent interface; contract.md section 6 (Heartbeat).
"""

from __future__ import annotations

from collections.abc import Sequence

import aiohttp
import orjson

from core.content_coding import BodyDecoder, BodyTooLarge, UndecodableBody
from core.market.agent_liveness import STATUSES, Availability
from federation.egress import gated_socket_factory

PROBE_TIMEOUT_S = 2.0
BODY_BYTES_MAX = 16_384
NOT_IMPLEMENTED = 501


class HealthProbe:
    """One session for all probes of a process; must be created inside its event loop.

    Args:
        egress_allow: networks that agents may live in although not public.
        service: the `<service>` of dispatch paths, for endpoints that end in one.
        timeout_s: for a whole probe.
    """

    def __init__(
        self, egress_allow: Sequence[str], service: str, *, timeout_s: float = PROBE_TIMEOUT_S
    ) -> None:
        self._service = service
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, force_close=True, socket_factory=gated_socket_factory(egress_allow)
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        )

    async def close(self) -> None:
        """Close the session."""
        await self._session.close()

    async def is_healthy(self, endpoint: str) -> bool:
        """Whether an agent at this address answers without an unhealthy status."""
        url = health_url(endpoint, self._service)
        try:
            async with self._session.get(
                url, headers={"Accept-Encoding": "identity"}, allow_redirects=False
            ) as response:
                if response.status >= 500:
                    return response.status == NOT_IMPLEMENTED
                coding = response.headers.get("Content-Encoding", "")
                return _is_reply_healthy(await response.content.read(BODY_BYTES_MAX), coding)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            # ValueError: the endpoint is no valid URL.
            return False


def health_url(endpoint: str, service: str) -> str:
    """Return the URL of an agent's health, also when its endpoint is the dispatch path."""
    base = endpoint.rstrip("/")
    if base.endswith("/node"):
        base = base.removesuffix("/node").removesuffix(f"/{service}")
    return f"{base}/health"


def _is_reply_healthy(body: bytes, coding: str) -> bool:
    """Whether a reply's `status` is a healthy one, or an unknown word."""
    try:
        decoder = BodyDecoder(coding, BODY_BYTES_MAX)
        decoder.feed(body)
        reply = orjson.loads(decoder.finish())
    except (UndecodableBody, BodyTooLarge, orjson.JSONDecodeError):
        return True
    said = reply.get("status") if isinstance(reply, dict) else None
    word = said.lower() if isinstance(said, str) else ""
    return STATUSES.get(word, Availability.AVAILABLE) is Availability.AVAILABLE
