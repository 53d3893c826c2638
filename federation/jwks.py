"""Fetches a JSON Web Key Set: over HTTP through the egress gate, or from a file of this machine.

Knows neither keys nor tokens. Decision signed-requests-and-claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from federation.documents import DocumentUnavailable, fetch_document

BYTES_MAX: Final = 256 * 1024


async def fetch_jwks(url: str, egress_allow: Sequence[str]) -> bytes:
    """Return the text of a key set.

    Args:
        url: `https://…`, or `http://…` or `file:///…` of this machine.
        egress_allow: networks that may be reached although not public.

    Raises:
        DocumentUnavailable: it cannot be read, or is larger than `BYTES_MAX`.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        return await asyncio.to_thread(_read, Path(unquote(parts.path)))
    return await fetch_document(url, egress_allow, BYTES_MAX)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise DocumentUnavailable(f"{type(error).__name__}: {error.strerror}") from None
    if len(text) > BYTES_MAX:
        raise DocumentUnavailable(f"the file has more than {BYTES_MAX} bytes")
    return text
