"""The address of a request: HAProxy's word with its token, else the connection's own."""

from __future__ import annotations

import pytest

from core.trust.deployment_keys import DeploymentKeys
from serve_app.callers.client_address import (
    CLIENT_ADDRESS_HEADER,
    UNKNOWN,
    ClientAddresses,
    proxy_tokens,
)

KEYS = DeploymentKeys([(1, b"k" * 32)])
TOKEN = proxy_tokens(KEYS)[0].encode()
OTHER = DeploymentKeys([(2, b"x" * 32)])
SCOPE = {"client": ("127.0.0.1", 5)}


def address(told: bytes | None, scope: object = SCOPE, keys: DeploymentKeys = KEYS) -> str:
    headers = {} if told is None else {CLIENT_ADDRESS_HEADER: told}
    return ClientAddresses(keys).address_of(scope, headers)  # type: ignore[arg-type]  # scopes of one member


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
        proxy_tokens(OTHER)[0].encode() + b" 192.0.2.7",
        TOKEN.upper() + b" 192.0.2.7",
    ],
)
def test_nobody_else_can_name_an_address(told: bytes | None) -> None:
    assert address(told) == "127.0.0.1"


def test_haproxy_is_believed_by_each_key_while_they_change() -> None:
    both = DeploymentKeys([(2, b"x" * 32), (1, b"k" * 32)])
    for token in (TOKEN, *(one.encode() for one in proxy_tokens(OTHER))):
        assert address(token + b" 192.0.2.7", keys=both) == "192.0.2.7"


def test_without_a_deployment_key_no_header_is_believed() -> None:
    assert address(b" 192.0.2.7", keys=DeploymentKeys()) == "127.0.0.1"
    assert address(TOKEN + b" 192.0.2.7", keys=DeploymentKeys()) == "127.0.0.1"


def test_a_request_without_a_connection_has_no_address() -> None:
    assert address(None, {"client": None}) == UNKNOWN
