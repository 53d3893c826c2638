"""The egress policy: no spelling of a private address passes, allow-lists do."""

from __future__ import annotations

import pytest

from core.topology.policy import address_denied


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.9.10",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:a9fe:a9fe",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "localhost",
        "2130706433",
        "0x7f.1",
    ],
)
def test_private_and_malformed_addresses_are_denied(address: str) -> None:
    assert address_denied(address, ()) is not None


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8"])
def test_public_addresses_pass(address: str) -> None:
    assert address_denied(address, ()) is None


def test_the_allow_list_opens_its_networks_only() -> None:
    assert address_denied("127.0.0.1", ("127.0.0.0/8",)) is None
    assert address_denied("::ffff:127.0.0.1", ("127.0.0.0/8",)) is None
    assert address_denied("10.0.0.1", ("127.0.0.0/8", "::1/128")) is not None
