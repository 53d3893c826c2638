"""Fetches a DID document from its host, through the egress gate.

Knows neither keys nor DIDs. A redirect is a reply, and no document. contract.md section 3;
decision 0251.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from federation.http_client import HttpClient, HttpRequest
from federation.http_connection import HttpFailure
from federation.name_resolver import NameResolver

TIMEOUT_S: Final = 5.0
BYTES_MAX: Final = 64 * 1024


class DocumentUnavailable(Exception):
    """A document was not fetched; the text says why, for the log alone."""


async def fetch_document(url: str, egress_allow: Sequence[str]) -> bytes:
    """Return the text of a DID document.

    Args:
        url: `https://…`.
        egress_allow: networks that may be reached although not public.

    Raises:
        DocumentUnavailable: there is none, or it has more than `BYTES_MAX` bytes.
    """
    client = HttpClient(egress_allow, NameResolver(), keep_alive_s=0)
    try:
        headers = {"Accept-Encoding": "identity"}
        request = HttpRequest("GET", url, headers, None, TIMEOUT_S, TIMEOUT_S, BYTES_MAX)
        outcome = await client.request(request)
    finally:
        await client.close()
    if isinstance(outcome, HttpFailure):
        raise DocumentUnavailable(f"{outcome.kind.name}: {outcome.detail}")
    if outcome.status != 200:
        raise DocumentUnavailable(f"got status {outcome.status}, expected 200")
    return outcome.body
