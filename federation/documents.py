"""Sends single requests through the egress gate: for DID documents, key sets of issuers and model
replies.

Each request has its own connection. Redirects are not followed. This module does not parse the
documents. Decision signed-requests-and-claims.
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
# The largest key set of an issuer.
KEY_SET_BYTES_MAX: Final = 256 * 1024


class DocumentUnavailable(Exception):
    """A request got no reply with status 200; the text has the reason, only for the log."""


async def fetch_document(url: str, egress_allow: Sequence[str], bytes_max: int) -> bytes:
    """Fetch a document and return its bytes.

    Args:
        url: an `https://…` or `http://…` URL.
        egress_allow: CIDR networks to which connections are allowed although they are not public.
        bytes_max: the largest document, bytes.

    Raises:
        DocumentUnavailable: the document could not be fetched or is too large.
        ValueError: the URL is not valid.
    """
    headers = {"Accept-Encoding": "identity"}
    request = HttpRequest("GET", url, headers, None, TIMEOUT_S, TIMEOUT_S, bytes_max)
    return await exchange(request, egress_allow)


async def fetch_jwks(url: str, egress_allow: Sequence[str]) -> bytes:
    """Fetch or read a key set (JWKS) and return its bytes.

    Args:
        url: an `https://…` or `http://…` URL, or a `file:///…` URL of a file on this machine.
        egress_allow: CIDR networks to which connections are allowed although they are not public.

    Raises:
        DocumentUnavailable: the key set cannot be read, or is larger than `KEY_SET_BYTES_MAX`.
        ValueError: the URL is not valid.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        return await asyncio.to_thread(_read, Path(unquote(parts.path)))
    return await fetch_document(url, egress_allow, KEY_SET_BYTES_MAX)


async def exchange(request: HttpRequest, egress_allow: Sequence[str]) -> bytes:
    """Send a request and return the body of its reply.

    Args:
        request: the request.
        egress_allow: CIDR networks to which connections are allowed although they are not public.

    Raises:
        DocumentUnavailable: there is no reply, it is too large, or its status is not 200.
        ValueError: the URL is not that of an HTTP server, or a header cannot be sent.
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
