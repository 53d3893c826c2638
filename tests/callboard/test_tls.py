"""TLS contexts: one that verifies for a whole process, none made for plain HTTP."""

from __future__ import annotations

import ssl
import subprocess
import sys

from callboard.transport import tls_context, tls_context_for

# Counts, in a process of its own, the contexts that are made with authorities.
_COUNTED = """
import asyncio, ssl, sys
from callboard import AsyncClient, Client
made = 0
def count(frame, event, argument):
    global made
    made += event == "call" and frame.f_code is ssl.create_default_context.__code__
sys.setprofile(count)
for url in sys.argv[1:]:
    for proxy in (None, "http://proxy.example:3128"):
        Client(url, "k", proxy=proxy).close()
        asyncio.run(AsyncClient(url, "k", proxy=proxy).aclose())
print(made)
"""


def made_for(*urls: str) -> int:
    """Return how many contexts with authorities clients of these addresses make together."""
    command = [sys.executable, "-c", _COUNTED, *urls]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_clients_of_https_addresses_share_one_context() -> None:
    assert made_for("https://a.example", "HTTPS://b.example") == 1


def test_clients_of_plain_http_addresses_make_none() -> None:
    assert made_for("http://a.example", "http://127.0.0.1:8000") == 0


def test_the_shared_context_verifies_whom_it_talks_to() -> None:
    context = tls_context_for("https://a.example")
    assert context is tls_context_for("HTTPS://b.example") is tls_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.cert_store_stats()["x509_ca"] > 0


def test_plain_http_has_a_context_that_trusts_no_authority() -> None:
    context = tls_context_for("http://a.example")
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.cert_store_stats()["x509"] == 0
