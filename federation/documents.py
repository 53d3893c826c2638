"""Single requests through the egress gate: a DID's document, an issuer's keys, a model's answer.

Each request has a connection of its own. A redirect is a reply like another, and not followed.
Knows neither keys nor tokens. Decision signed-requests-and-claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from federation.http_client import HttpClient, HttpRequest
from federation.http_connection import HttpFailure
from federation.name_resolver import NameResolver

TIMEOUT_S: Final = 5.0
# Of an issuer's key set.
KEY_SET_BYTES_MAX: Final = 256 * 1024


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


async def fetch_jwks(url: str, egress_allow: Sequence[str]) -> bytes:
    """Return the text of a key set.

    Args:
        url: `https://…`, or `http://…` or `file:///…` of this machine.
        egress_allow: networks that may be reached although not public.

    Raises:
        DocumentUnavailable: it cannot be read, or is larger than `KEY_SET_BYTES_MAX`.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        return await asyncio.to_thread(_read, Path(unquote(parts.path)))
    return await fetch_document(url, egress_allow, KEY_SET_BYTES_MAX)


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


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(KEY_SET_BYTES_MAX + 1)
    except OSError as error:
        raise DocumentUnavailable(f"{type(error).__name__}: {error.strerror}") from None
    if len(text) > KEY_SET_BYTES_MAX:
        raise DocumentUnavailable(f"the file has more than {KEY_SET_BYTES_MAX} bytes")
    return text
