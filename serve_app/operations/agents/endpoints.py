"""Checks the endpoints of agents against the egress policy when the agents are registered.

The egress policy is in `core/egress/policy.py`. Each later connection to an endpoint checks the
policy again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from actors.process.slices import Slices
from core.errors import ErrorCode, Problem, ServiceError
from core.trust.access import Principal
from serve_app.http.calls import invalid
from serve_app.services import Services

# For the endpoints of a bulk: concurrent name look-ups, and the timeout for all look-ups together.
LOOKUPS_AT_ONCE: Final = 64
BULK_TIMEOUT_S: Final = 10.0


async def endpoint_refusals(
    services: Services,
    principal: Principal,
    endpoints: Sequence[str | None],
    *,
    timeout_s: float = BULK_TIMEOUT_S,
) -> list[ServiceError | None]:
    """Return the refusal of each endpoint; None for a permitted or missing endpoint.

    Args:
        services: the replica's services.
        principal: the caller, under whose DID the name look-ups count.
        endpoints: the endpoints; None or "" for an agent without an endpoint.
        timeout_s: the timeout for all endpoints together, in seconds. An endpoint that is not
            checked by then gets OVERLOADED.

    Returns:
        INVALID_REQUEST, POLICY_DENIED, OVERLOADED or None, in the order of the endpoints.
    """
    found: list[ServiceError | None] = [None] * len(endpoints)
    places: dict[tuple[str, int], list[int]] = {}
    for index, endpoint in enumerate(endpoints):
        place = host_and_port(endpoint) if endpoint else None
        if place is not None:
            places.setdefault(place, []).append(index)
        elif endpoint:
            expected = "an http or https URL with a host"
            found[index] = invalid("acard.endpoint", endpoint, expected)
    for (host, _), indexes in places.items():
        for index in indexes:
            found[index] = ServiceError(
                ErrorCode.OVERLOADED,
                f"the name {host} was not resolved within {timeout_s:g} s: try again",
            )
    waiting = iter(places.items())

    async def judge_in_turn() -> None:
        slices = Slices()
        for (host, port), indexes in waiting:
            reason = await services.denied_endpoint(host, port, principal.did)
            for index in indexes:
                found[index] = _denial(endpoints[index] or "", host, reason)
            await slices.pause()

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
            for _ in range(min(len(places), LOOKUPS_AT_ONCE)):
                group.create_task(judge_in_turn())
    return found


def host_and_port(url: str) -> tuple[str, int] | None:
    """Return the host and the port of a URL; None if it is not a URL with a host."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    return (host, port) if host else None


def _denial(endpoint: str, host: str, reason: str | None) -> ServiceError | None:
    if reason is None:
        return None
    return ServiceError(
        ErrorCode.POLICY_DENIED,
        f"the endpoint host {host} is not allowed: {reason}",
        (Problem("acard.endpoint", endpoint, "an address that the egress policy allows"),),
    )
