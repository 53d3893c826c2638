"""Signs the requests of a client with the key of a DID, instead of an API key.

Reference: http.md (Authentication).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator

import httpx

from callboard.locating import DidKey
from core.trust.requests.request_signature import signature_headers


class SignsRequests(httpx.Auth):
    """Signs each request, and each repeat of it anew, with the key of a DID."""

    requires_request_body = True

    def __init__(self, key: DidKey) -> None:
        self._key = key

    def __repr__(self) -> str:
        return f"SignsRequests({self._key!r})"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Sign a request as it is sent."""
        url = request.url
        signed = signature_headers(
            request.method,
            f"{url.scheme}://{url.netloc.decode()}{url.raw_path.decode()}",
            request.content,
            did=self._key.did,
            private_key=self._key.seed,
            created_s=int(time.time()),
            nonce=secrets.token_urlsafe(16),
        )
        request.headers.update(signed)
        yield request
