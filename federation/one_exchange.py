"""One request through the egress gate, on a connection that nothing else uses.

A redirect is a reply like another, and not followed. Decisions 0221, 0251 and 0295.
"""

from __future__ import annotations

from collections.abc import Sequence

from federation.http_client import HttpClient, HttpRequest
from federation.http_connection import HttpFailure
from federation.name_resolver import NameResolver


class Unanswered(Exception):
    """There is no reply with status 200; the text says why, for the log alone."""


async def exchange(request: HttpRequest, egress_allow: Sequence[str]) -> bytes:
    """Send a request and return the body of its reply.

    Args:
        egress_allow: networks that may be reached although not public.

    Raises:
        Unanswered: the reply has another status than 200, is too large, or there is none.
        ValueError: the address cannot be asked.
    """
    client = HttpClient(egress_allow, NameResolver(), keep_alive_s=0)
    try:
        outcome = await client.request(request)
    finally:
        await client.close()
    if isinstance(outcome, HttpFailure):
        raise Unanswered(f"{outcome.kind.name}: {outcome.detail}")
    if outcome.status != 200:
        raise Unanswered(f"got status {outcome.status}, expected 200")
    return outcome.body
