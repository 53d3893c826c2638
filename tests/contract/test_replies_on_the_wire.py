"""What a replica writes: a small reply in one piece, with uvicorn's protocol as Serve starts it.

Method: a bare socket at a replica's own port, past HAProxy; the kernel counts the segments that
came. It tells when Serve names a protocol of its own or uvicorn writes otherwise. Decision
messages-and-large-values.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.contract.conftest import Caller
from tests.contract.test_noisy_callers import read_reply
from tests.platform.deployments import RunningDeployment
from tests.serve_app.http.test_whole_replies import segments_in

TIMES = 20
DEPOSIT = "/v1/ledger/deposit"
BODY = b'{"amount":1}'


@contextmanager
def replica_connection(deployment: RunningDeployment) -> Iterator[socket.socket]:
    """Yield a connection to a replica."""
    with socket.create_connection(deployment.replica_place(), timeout=120) as connection:
        yield connection


def asked(caller: Caller, method: str, path: str, body: bytes = b"", more: str = "") -> bytes:
    """Return the text of a request."""
    length = f"content-length: {len(body)}\r\n" if body else ""
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {caller.key}\r\n{length}{more}\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/ledger/balance", b"", 200),
        ("GET", "/v1/none", b"", 404),
        ("GET", "/health", b"", 200),
        ("POST", DEPOSIT, BODY, 200),
        ("POST", DEPOSIT, b"{}", 400),
    ],
)
def test_a_small_reply_is_one_segment(
    deployment: RunningDeployment, admin: Caller, method: str, path: str, body: bytes, status: int
) -> None:
    with replica_connection(deployment) as connection:
        for _ in range(TIMES):
            connection.sendall(asked(admin, method, path, body))
            assert read_reply(connection)[0] == status
        assert segments_in(connection) == TIMES


def test_a_reply_without_a_body_is_sent_and_the_connection_stays(
    deployment: RunningDeployment, admin: Caller
) -> None:
    with replica_connection(deployment) as connection:
        for _ in range(TIMES):
            connection.sendall(asked(admin, "HEAD", "/v1/ledger/balance"))
            reply = connection.recv(65_536)
            assert reply.startswith(b"HTTP/1.1 200 ")
            assert reply.endswith(b"\r\n\r\n")
        assert segments_in(connection) == TIMES


@pytest.mark.parametrize("path", ["/v1/ledger/balance", "/openapi.json"])
def test_a_reply_is_whole_before_its_connection_closes(
    deployment: RunningDeployment, admin: Caller, path: str
) -> None:
    with replica_connection(deployment) as connection:
        connection.sendall(asked(admin, "GET", path, more="connection: close\r\n"))
        status, headers, body = read_reply(connection)
        assert (status, headers["connection"]) == (200, "close")
        assert json.loads(body)
        assert connection.recv(65_536) == b""


def test_a_client_may_ask_before_it_sends_its_body(
    deployment: RunningDeployment, admin: Caller
) -> None:
    request = asked(admin, "POST", DEPOSIT, BODY, "expect: 100-continue\r\n")
    with replica_connection(deployment) as connection:
        connection.sendall(request.removesuffix(BODY))
        assert connection.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert read_reply(connection)[0] == 200


def test_requests_sent_together_are_answered_in_their_order(
    deployment: RunningDeployment, admin: Caller
) -> None:
    paths = [(f"/v1/none/{number}", 404) for number in range(TIMES)]
    paths[TIMES // 2] = ("/v1/ledger/balance", 200)
    last = asked(admin, "GET", "/v1/none/last", more="connection: close\r\n")
    with replica_connection(deployment) as connection:
        connection.sendall(b"".join(asked(admin, "GET", path) for path, _ in paths) + last)
        received = b"".join(iter(lambda: connection.recv(65_536), b""))
    for path, status in (*paths, ("/v1/none/last", 404)):
        head, _, received = received.partition(b"\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status} ".encode())
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body, received = received[:length], received[length:]
        assert status == 200 or path in json.loads(body)["detail"]
    assert received == b""
