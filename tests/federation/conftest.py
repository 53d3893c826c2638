"""Whom the client trusts in these tests."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from federation.http_client import tls_context
from tests.federation.certificates import self_signed


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ssl.SSLContext]:
    """Return the context of a server whom this process trusts."""
    certificate = self_signed(tmp_path, "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls_context.cache_clear()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    yield context
    tls_context.cache_clear()


@dataclass(frozen=True)
class LoggedContext:
    """A server's context that logs the keys of its sessions, and sends no tickets."""

    context: ssl.SSLContext
    file: Path


@pytest.fixture
def logged(trusted: ssl.SSLContext, tmp_path: Path) -> LoggedContext:
    """Return the context of a server whom this process trusts, and its log of keys."""
    file = tmp_path / "keys.log"
    trusted.keylog_filename = str(file)
    trusted.num_tickets = 0
    return LoggedContext(trusted, file)
