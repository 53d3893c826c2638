"""The egress policy: no spelling of a private address passes, allow-lists do."""

from __future__ import annotations

import pytest

from core.egress.policy import address_denied


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
        "64:ff9b::a00:1",
        "64:ff9b:1::7f00:1",
        "64:ff9b:1:7f00:0:100::",
        "::ffff:0:127.0.0.1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        # Teredo: with a private server, a private client, neither.
        "2001:0:7f00:1::f7f7:f7f7",
        "2001:0:808:808::f5ff:fffe",
        "2001:0:808:808::f7f7:f7f7",
        "::8.8.8.8",
        "::7f00:1",
        "fec0::1",
        "192.88.99.1",
        "5f00::1",
        "3fff::1",
        "2001:db8::1",
        "2001:2::1",
        "100::1",
        "4000::1",
        "192.0.0.9",
        "198.18.0.1",
        "203.0.113.1",
        "240.0.0.1",
        "localhost",
        "2130706433",
        "0x7f.1",
    ],
)
def test_private_and_malformed_addresses_are_denied(address: str) -> None:
    reason = address_denied(address, ())
    assert reason is not None
    assert address not in reason, "it may be what a name of ours resolves to"


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "100.63.255.255",
        "172.32.0.1",
        "223.255.255.255",
        "2606:4700:4700::1111",
        "2001:4860:4860::8888",
        "3ffe:ffff::1",
        "::ffff:8.8.8.8",
        "::ffff:0:8.8.8.8",
        "64:ff9b::808:808",
        "64:ff9b:1::808:808",
        "2002:808:808::1",
    ],
)
def test_public_addresses_pass(address: str) -> None:
    assert address_denied(address, ()) is None


def test_the_allow_list_opens_its_networks_only() -> None:
    assert address_denied("127.0.0.1", ("127.0.0.0/8",)) is None
    assert address_denied("::ffff:127.0.0.1", ("127.0.0.0/8",)) is None
    assert address_denied("::1", ("::1/128",)) is None
    assert address_denied("64:ff9b::a00:1", ("10.0.0.0/8",)) is None
    assert address_denied("10.0.0.1", ("127.0.0.0/8", "::1/128")) is not None
