"""Hundreds of clients that send slowly, or wait, stop no other client.

Goal: what one address and one owner can hold of the front leaves room for all others. Method: 600
bodies that stay incomplete and 400 waiting reads of one owner are held open at the victim while
another payer publishes. Decisions http-edge and fairness-and-long-work.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest

from tests.platform.deployments import RunningDeployment

SLOW, WAITING, PUBLISHES = 600, 400, 30
ATTACKER, PAYER = "127.0.0.21", "127.0.0.22"
MANIFEST = {"nodes": {"a": {"capabilityId": "cap.offered.by.none.v1"}}, "dryRun": True}

pytestmark = pytest.mark.slow


def payer_of(http: httpx.Client, did: str) -> str:
    """Return a key of a new payer."""
    made = http.post("/v1/keys", json={"ownerDid": did, "rateClass": "unlimited"})
    assert made.status_code == 200, made.text
    return str(made.json()["key"])


def test_slow_bodies_and_waiting_reads_stop_no_other(victim: RunningDeployment) -> None:
    parts = urlsplit(victim.url)
    assert parts.hostname is not None
    place = (parts.hostname, parts.port)
    with httpx.Client(base_url=victim.url, headers={"x-api-key": victim.admin_key}) as admin:
        waiting_key = payer_of(admin, "did:net:slow-waiting")
        other_key = payer_of(admin, "did:net:slow-other")
    slow = (
        "POST /v1/workflows/nodeResult HTTP/1.1\r\nhost: x\r\ncontent-length: 400000\r\n\r\n["
        + " " * 20_000
    )
    waiting = (
        "POST /v1/workflows/publish HTTP/1.1\r\nhost: x\r\nprefer: wait=60\r\n"
        f"x-api-key: {waiting_key}\r\ncontent-length: 400\r\n\r\n"
    )
    with ExitStack() as stack:
        for number in range(SLOW + WAITING):
            connection = socket.create_connection(place, source_address=(ATTACKER, 0))
            stack.enter_context(connection)
            connection.sendall((slow if number < SLOW else waiting).encode())
        transport = httpx.HTTPTransport(local_address=PAYER)
        own = {"x-api-key": other_key}
        with httpx.Client(
            base_url=victim.url, headers=own, transport=transport, timeout=90.0
        ) as http:
            statuses = [
                http.post("/v1/workflows/publish", json=MANIFEST).status_code
                for _ in range(PUBLISHES)
            ]
    assert statuses == [200] * PUBLISHES
