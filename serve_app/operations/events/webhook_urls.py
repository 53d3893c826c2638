"""Checks the URLs of webhooks and the `webhookUrl` of publishes.

The egress policy is in `core/topology/policy.py`. It is checked again at each connect.
Reference: features.md (Webhooks).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from core.errors import ErrorCode, Problem, ProblemList, ServiceError
from core.records.bounds import is_webhook_url
from core.records.manifest_problems import refused_manifest
from core.topology.policy import address_denied
from serve_app.http.calls import Call, invalid

_EXPECTED = "an http or https URL with a host and without credentials"
_ALLOWED = "an address that the egress policy allows"


async def check_webhook_url(call: Call, url: str) -> None:
    """Refuse the URL of a webhook whose address the egress policy denies.

    Raises:
        ServiceError: INVALID_REQUEST or POLICY_DENIED.
    """
    place = _host_and_port(url)
    if place is None:
        raise invalid("url", url[:200], _EXPECTED)
    reason = await call.services.denied_endpoint(*place, call.caller.did)
    if reason is not None:
        problem = Problem("url", url[:200], _ALLOWED)
        detail = f"the host {place[0]} of the url is not allowed: {reason}"
        raise ServiceError(ErrorCode.POLICY_DENIED, detail, (problem,))


def check_publish_url(url: str | None, egress_allow: Sequence[str]) -> None:
    """Refuse a `webhookUrl` that is not valid or whose host is a denied IP address.

    No name is resolved here: its addresses are checked at each connect.

    Raises:
        ServiceError: INVALID_MANIFEST.
    """
    if url is None:
        return
    place = _host_and_port(url) if is_webhook_url(url) else None
    if place is not None and _denial(place[0], egress_allow) is None:
        return
    problems = ProblemList()
    problems.append(Problem("webhookUrl", url[:200], _EXPECTED if place is None else _ALLOWED))
    raise refused_manifest(problems)


def _denial(host: str, egress_allow: Sequence[str]) -> str | None:
    """Return why a host may not be reached; None of one that is a name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return address_denied(host, egress_allow)


def _host_and_port(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    return (host, port) if host else None
