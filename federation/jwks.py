"""Fetches a JSON Web Key Set: over HTTP through the egress gate, or from a file of this machine.

Knows neither keys nor tokens. contract.md section 3; decision 0221.
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
BYTES_MAX: Final = 256 * 1024


class JwksUnavailable(Exception):
    """A key set was not fetched; the text says why, for the log alone."""


async def fetch_jwks(url: str, egress_allow: Sequence[str]) -> bytes:
    """Return the text of a key set.

    Args:
        url: `https://…`, or `http://…` or `file:///…` of this machine.
        egress_allow: networks that may be reached although not public.

    Raises:
        JwksUnavailable: it cannot be read, or is larger than `BYTES_MAX`.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        return await asyncio.to_thread(_read, Path(unquote(parts.path)))
    client = HttpClient(egress_allow, NameResolver(), keep_alive_s=0)
    try:
        headers = {"Accept-Encoding": "identity"}
        request = HttpRequest("GET", url, headers, None, TIMEOUT_S, TIMEOUT_S, BYTES_MAX)
        outcome = await client.request(request)
    finally:
        await client.close()
    if isinstance(outcome, HttpFailure):
        raise JwksUnavailable(f"{outcome.kind.name}: {outcome.detail}")
    if outcome.status != 200:
        raise JwksUnavailable(f"got status {outcome.status}, expected 200")
    return outcome.body


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise JwksUnavailable(f"{type(error).__name__}: {error.strerror}") from None
    if len(text) > BYTES_MAX:
        raise JwksUnavailable(f"the file has more than {BYTES_MAX} bytes")
    return text
