"""TLS contexts, one per process: making one reads every certificate authority, which takes 40 ms.

Environment variables are not read, as in all of the client's connections.
"""

from __future__ import annotations

import ssl
from functools import cache

import httpx


@cache
def tls_context() -> ssl.SSLContext:
    """Return the context with which this process verifies the services that it talks to."""
    return httpx.create_ssl_context(trust_env=False)


def tls_context_for(url: str) -> ssl.SSLContext:
    """Return the context for requests to an address.

    For plain HTTP it is one that trusts no authority: made at once, and safe should it be used.
    """
    return tls_context() if url.lower().startswith("https:") else _trusting_none()


@cache
def _trusting_none() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
