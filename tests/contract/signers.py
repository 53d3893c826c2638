"""Callers of the tests that sign their requests with the key of a DID (RFC 9421)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
from nacl.signing import SigningKey

from core.trust.did_key import did_of_key
from core.trust.requests.request_signature import signature_headers


@dataclass
class Signer(httpx.Auth):
    """Signs each request; `did` empty: the `did:key` of its key."""

    did: str = ""
    key: SigningKey = field(default_factory=SigningKey.generate)
    requires_request_body = True

    def __post_init__(self) -> None:
        self.did = self.did or did_of_key(bytes(self.key.verify_key))

    def headers(
        self, method: str, url: str, body: bytes = b"", *, age_s: int = 0, nonce: str | None = None
    ) -> dict[str, str]:
        """Return the headers that sign a request."""
        return signature_headers(
            method,
            url,
            body,
            did=self.did,
            private_key=bytes(self.key),
            created_s=int(time.time()) - age_s,
            nonce=nonce or secrets.token_hex(8),
        )

    def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:
        """Sign a request as it is sent."""
        request.headers.update(self.headers(request.method, str(request.url), request.content))
        yield request
