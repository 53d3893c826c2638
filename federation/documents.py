"""Single requests through the egress gate: a DID's document, an issuer's keys, a model's answer.

Each request has a connection of its own. A redirect is a reply like another, and not followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from federation.http_client import HttpClient, HttpRequest
from federation.http_connection import HttpFailure
from federation.name_resolver import NameResolver

TIMEOUT_S: Final = 5.0


class DocumentUnavailable(Exception):
    """There is no reply with status 200; the text says why, for the log alone."""


async def fetch_document(url: str, egress_allow: Sequence[str], bytes_max: int) -> bytes:
    """Return the text of a document.

    Args:
        url: `https://…`, or `http://…` of an address that may be reached.
        egress_allow: networks that may be reached although not public.
        bytes_max: of the document.

    Raises:
        DocumentUnavailable: there is none, or it is larger.
    """
    headers = {"Accept-Encoding": "identity"}
    request = HttpRequest("GET", url, headers, None, TIMEOUT_S, TIMEOUT_S, bytes_max)
    return await exchange(request, egress_allow)


async def exchange(request: HttpRequest, egress_allow: Sequence[str]) -> bytes:
    """Send a request and return the body of its reply.

    Args:
        egress_allow: networks that may be reached although not public.

    Raises:
        DocumentUnavailable: the reply has another status than 200, is too large, or there is none.
        ValueError: the address cannot be asked.
    """
    client = HttpClient(egress_allow, NameResolver(), keep_alive_s=0)
    try:
        outcome = await client.request(request)
    finally:
        await client.close()
    if isinstance(outcome, HttpFailure):
        raise DocumentUnavailable(f"{outcome.kind.name}: {outcome.detail}")
    if outcome.status != 200:
        raise DocumentUnavailable(f"got status {outcome.status}, expected 200")
    return outcome.body
