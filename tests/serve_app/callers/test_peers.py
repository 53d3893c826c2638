"""The address of a request: HAProxy's word with its token, else the connection's own."""

from __future__ import annotations

import pytest

from serve_app.callers.peers import PEER_HEADER, UNKNOWN, Peers, peer_token

KEY = b"k" * 32
TOKEN = peer_token(KEY).encode()
SCOPE = {"client": ("127.0.0.1", 5)}


def address(told: bytes | None, scope: object = SCOPE, key: bytes = KEY) -> str:
    headers = {} if told is None else {PEER_HEADER: told}
    return Peers(key).address_of(scope, headers)  # type: ignore[arg-type]  # scopes of one member


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        (b"192.0.2.7", "192.0.2.7"),
        (b"::ffff:192.0.2.7", "192.0.2.7"),
        (b"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        (b"2001:db8:1:2::1", "2001:db8:1:2::/64"),
        (b"2001:db8:1:3::1", "2001:db8:1:3::/64"),
        (b"::1", "::/64"),
        (b"not:an:address", UNKNOWN),
        (b"", UNKNOWN),
    ],
)
def test_haproxy_tells_the_address(told: bytes, counted: str) -> None:
    assert address(TOKEN + b" " + told) == counted


@pytest.mark.parametrize(
    "told",
    [
        None,
        b"",
        b"192.0.2.7",
        b" 192.0.2.7",
        b"0" * 32 + b" 192.0.2.7",
        peer_token(b"x" * 32).encode() + b" 192.0.2.7",
        TOKEN.upper() + b" 192.0.2.7",
    ],
)
def test_nobody_else_can_name_an_address(told: bytes | None) -> None:
    assert address(told) == "127.0.0.1"


def test_without_a_deployment_key_no_header_is_believed() -> None:
    assert address(b" 192.0.2.7", key=b"") == "127.0.0.1"
    assert address(peer_token(bytes(32)).encode() + b" 192.0.2.7", key=b"") == "127.0.0.1"


def test_a_request_without_a_connection_has_no_address() -> None:
    assert address(None, {"client": None}) == UNKNOWN
