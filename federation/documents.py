"""Fetches a small public document through the egress gate: a DID's, or an issuer's keys.

Knows neither keys nor DIDs. A redirect is a reply, and no document. contract.md section 3;
decisions 0221 and 0251.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from federation.http_client import HttpClient, HttpRequest
from federation.http_connection import HttpFailure
from federation.name_resolver import NameResolver

TIMEOUT_S: Final = 5.0


class DocumentUnavailable(Exception):
    """A document was not fetched; the text says why, for the log alone."""


async def fetch_document(url: str, egress_allow: Sequence[str], bytes_max: int) -> bytes:
    """Return the text of a document.

    Args:
        url: `https://…`, or `http://…` of an address that may be reached.
        egress_allow: networks that may be reached although not public.
        bytes_max: of the document.

    Raises:
        DocumentUnavailable: there is none, or it is larger.
    """
    client = HttpClient(egress_allow, NameResolver(), keep_alive_s=0)
    try:
        headers = {"Accept-Encoding": "identity"}
        request = HttpRequest("GET", url, headers, None, TIMEOUT_S, TIMEOUT_S, bytes_max)
        outcome = await client.request(request)
    finally:
        await client.close()
    if isinstance(outcome, HttpFailure):
        raise DocumentUnavailable(f"{outcome.kind.name}: {outcome.detail}")
    if outcome.status != 200:
        raise DocumentUnavailable(f"got status {outcome.status}, expected 200")
    return outcome.body
