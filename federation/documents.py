"""Fetches a small public document through the egress gate: a DID's, or an issuer's keys.

Knows neither keys nor DIDs. A redirect is a reply, and no document. contract.md section 3;
decisions 0221 and 0251.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from federation.http_client import HttpRequest
from federation.one_exchange import Unanswered, exchange

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
    headers = {"Accept-Encoding": "identity"}
    request = HttpRequest("GET", url, headers, None, TIMEOUT_S, TIMEOUT_S, bytes_max)
    try:
        return await exchange(request, egress_allow)
    except Unanswered as error:
        raise DocumentUnavailable(str(error)) from None
