"""What bare sockets send, valid or not: every reply is JSON, and every refusal problem details.

Method: requests that HTTP libraries do not send, as texts. Some end at HAProxy's parser, some at
its rules, at the replicas' HTTP server, at Serve or at our operations.
"""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import httpx
import pytest

from serve_app.api import all_operations
from tests.contract.conftest import Caller, answer, refusal
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]
LONG = b"a" * 20_000
END = b"host: x\r\nconnection: close\r\n\r\n"


def replies(url: str, request: bytes) -> bytes:
    """Send bytes and return what comes until the connection is closed."""
    place = httpx.URL(url)
    assert place.port is not None
    with socket.create_connection((place.host, place.port), timeout=60) as line:
        try:
            line.sendall(request)
        except ConnectionError:
            pass  # refused before all of it was sent
        received = b""
        try:
            while part := line.recv(65_536):
                received += part
        except ConnectionError:
            assert received
        return received


def parsed(received: bytes) -> tuple[int, dict[str, str], Json]:
    """Return status, headers and body of the only reply."""
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    headers = {name.lower(): text for name, text in (one.split(": ", 1) for one in lines)}
    assert len(body) == int(headers["content-length"])
    found: Json = json.loads(body)
    return int(first.split()[1]), headers, found


def check_problem(received: bytes, status: int, code: str) -> dict[str, str]:
    """Check that a reply is this refusal, as the HTTP reference has it; return its headers."""
    got, headers, body = parsed(received)
    assert (got, body["status"], body["code"], body["error"]) == (status, status, code, code)
    assert headers["content-type"] == "application/problem+json"
    assert body["detail"] == body["message"]
    assert {"type", "title", "requestId"} <= set(body)
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    return headers


@pytest.mark.parametrize(
    "request_text",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost x\r\n\r\n",
        b"GET / HTTP/x\r\n" + END,
        b"GET /a b HTTP/1.1\r\n" + END,
        b"GET /\xc3\xa9 HTTP/1.1\r\n" + END,
        b"GET /a\0b HTTP/1.1\r\n" + END,
        b"G@T / HTTP/1.1\r\n" + END,
        b"GET /" + LONG + b" HTTP/1.1\r\n" + END,
        b"POST /" + 10 * LONG + b" HTTP/1.1\r\n" + END,
        b"HEAD /" + LONG + b" HTTP/1.1\r\n" + END,
        b"GET / HTTP/1.1\r\nx-a: " + LONG + b"\r\n" + END,
        b"GET / HTTP/1.1\r\nx-a: a\0b\r\n" + END,
        b"GET / HTTP/1.1\r\n" + b"".join(b"x-%d: a\r\n" % n for n in range(300)) + END,
        b"GET / HTTP/1.1\r\nhost: y\r\n" + END,
        b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n" + END + b"ab",
        b"POST / HTTP/1.1\r\ncontent-length: -1\r\n" + END,
        b"POST / HTTP/1.1\r\ncontent-length: " + b"9" * 30 + b"\r\n" + END,
        b"POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n" + END + b"0\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n" + END + b"zz\r\n\r\n",
        b"GET / HTTP/1.1\r\ntransfer-encoding: chunked\r\n" + END + b"0\r\n\r\n",
    ],
)
def test_what_is_not_valid_http_is_a_problem(
    deployment: RunningDeployment, request_text: bytes
) -> None:
    check_problem(replies(deployment.url, request_text), 400, "INVALID_REQUEST")


def test_a_later_request_of_a_connection_is_refused_alike(deployment: RunningDeployment) -> None:
    first = b"HEAD /ready HTTP/1.1\r\nhost: x\r\n\r\n"
    received = replies(deployment.url, first + b"GET / HTTP/1.1\r\nhost x\r\n\r\n")
    head, _, rest = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    check_problem(rest, 400, "INVALID_REQUEST")


@pytest.mark.parametrize("method", [b"BREW", b"get", b"PROPFIND", b"TRACE", b"OPTIONS", b"X-1"])
@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (b"/", "GET, HEAD"),
        (b"/health", "GET, HEAD"),
        (b"/v1/workflows", "GET, HEAD, POST"),
        (b"/v1/workflows/publish", "POST"),
        (b"/v1/keys/x", "DELETE"),
    ],
)
def test_another_method_is_405_with_those_that_are_allowed(
    deployment: RunningDeployment, method: bytes, path: bytes, allowed: str
) -> None:
    received = replies(deployment.url, method + b" " + path + b" HTTP/1.1\r\n" + END)
    headers = check_problem(received, 405, "METHOD_NOT_ALLOWED")
    assert headers["allow"] == allowed


@pytest.mark.parametrize(
    "request_text",
    [
        b"OPTIONS * HTTP/1.1\r\n" + END,
        b"CONNECT x:443 HTTP/1.1\r\nhost: x:443\r\nconnection: close\r\n\r\n",
    ],
)
def test_what_names_no_path_is_405(deployment: RunningDeployment, request_text: bytes) -> None:
    check_problem(replies(deployment.url, request_text), 405, "METHOD_NOT_ALLOWED")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        (b"/none", 404, "NOT_FOUND"),
        (b"http://x/none", 404, "NOT_FOUND"),
        (b"/v1/workflows/", 404, "NOT_FOUND"),
        (b"/health/", 404, "NOT_FOUND"),
        (b"/%00", 404, "NOT_FOUND"),
        (b"/%FF%zz", 404, "NOT_FOUND"),
        (b"/v1/agent/%00", 400, "INVALID_REQUEST"),
        (b"/v1/agent/did:net:%FF", 400, "INVALID_REQUEST"),
        (b"/-/routes", 404, "NOT_FOUND"),
        (b"//-/routes", 404, "NOT_FOUND"),
        (b"/stats", 404, "NOT_FOUND"),
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"BREW"])
def test_an_unknown_path_is_a_problem(
    deployment: RunningDeployment, method: bytes, path: bytes, status: int, code: str
) -> None:
    if method != b"GET" and status == 400:
        status, code = 405, "METHOD_NOT_ALLOWED"
    received = replies(deployment.url, method + b" " + path + b" HTTP/1.1\r\n" + END)
    check_problem(received, status, code)


@pytest.mark.parametrize(
    ("start", "headers"),
    [
        (b"GET /ready HTTP/1.1", b""),
        (b"GET /ready HTTP/1.0", b""),
        (b"GET /-/healthz HTTP/1.1", b""),
        (b"GET http://x/ready HTTP/1.1", b""),
        (b"GET /r%65ady HTTP/1.1", b""),
        (b"GET /ready HTTP/1.1", b"content-length: 0\r\ncontent-length: 0\r\n"),
        (b"GET /ready HTTP/1.1", b"upgrade: websocket\r\nconnection: upgrade\r\n"
         b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"),
        (b"GET /ready HTTP/1.1", b"upgrade: h2c\r\nconnection: upgrade, http2-settings\r\n"
         b"http2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"),
    ],
)  # fmt: skip
def test_what_is_odd_and_valid_is_answered(
    deployment: RunningDeployment, start: bytes, headers: bytes
) -> None:
    status, answered, body = parsed(replies(deployment.url, start + b"\r\n" + headers + END))
    assert (status, body["status"]) == (200, "ready")
    assert answered["content-type"] == "application/json"


def test_a_large_body_where_none_is_asked_for_is_413(deployment: RunningDeployment) -> None:
    start = b"DELETE /v1/keys/x HTTP/1.1\r\ncontent-length: 100000\r\n"
    received = replies(deployment.url, start + END + b"a" * 100_000)
    check_problem(received, 413, "PAYLOAD_TOO_LARGE")


def test_the_root_tells_where_to_begin(anonymous: httpx.Client) -> None:
    body = answer(anonymous.get("/"))
    assert body["service"] == "callboard"
    assert set(body) == {"service", "version", "docs", "openapi", "health", "ready"}
    for name in ("docs", "openapi", "health", "ready"):
        assert anonymous.get(body[name]).status_code == 200, name
    assert anonymous.get("/", headers={"accept": "text/html,*/*;q=0.8"}).json() == body
    refusal(anonymous.post("/"), 405, "METHOD_NOT_ALLOWED")


def test_head_is_answered_like_get_without_the_body(
    deployment: RunningDeployment, payer: Caller
) -> None:
    names = {"did": "did:net:none", "agent_did": "did:net:none"}
    for operation in all_operations():
        if operation.method != "GET":
            continue
        path = re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], "none"), operation.path)
        with payer.http.stream("GET", path) as got:  # one of events does not end
            head = payer.http.head(path)
        assert head.status_code == got.status_code, path
        assert head.headers["content-type"] == got.headers["content-type"], path
        assert head.content == b"", path


@pytest.mark.parametrize("name", [b"x-request-id", b"serve_multiplexed_model_id"])
def test_a_header_that_is_no_utf_8_does_no_harm(deployment: RunningDeployment, name: bytes) -> None:
    """Serve decodes these two, and answered 500."""
    request = b"GET /health HTTP/1.1\r\n" + name + b': \xff\xfe"<>\r\n' + END
    status, _, body = parsed(replies(deployment.url, request))
    assert (status, body["status"]) == (200, "healthy")
