"""The egress policy: which addresses the service may open a connection to.

Pure, over a resolved address; `federation/egress.py` applies it at every connect. The networks are
those of IANA's registries of special-purpose addresses that are not globally reachable, written
out, because Python's own table differs from version to version.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_DENIED_IPV4: Final = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by a carrier's customers
        "127.0.0.0/8",  # this machine
        "169.254.0.0/16",  # link-local, and the metadata of clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
# What IANA has given to the internet; all else is local, reserved or carries an IPv4 address.
_GLOBAL_IPV6: Final = ipaddress.IPv6Network("2000::/3")
_DENIED_IPV6: Final = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, and Teredo
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
)
# The last 32 bits are an IPv4 address: IPv4-mapped, IPv4-translated (SIIT), NAT64, local NAT64.
_IPV4_AT_END: Final = tuple(
    ipaddress.IPv6Network(network)
    for network in ("::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/96")
)
_6TO4: Final = ipaddress.IPv6Network("2002::/16")
_IPV4_BITS: Final = 0xFFFF_FFFF


def address_denied(address: str, allowed_networks: Sequence[str]) -> str | None:
    """Return why a connection to this address is denied, None when it is allowed.

    The reason does not name the address: it is told to owners of agents, who may have named a host
    of ours only. What our names resolve to is not theirs to know.
    An address that carries an IPv4 address is judged by that one, which could be private.

    Args:
        address: an IPv4 or IPv6 address in text form, scope id allowed, never a host name.
        allowed_networks: CIDR networks of the deployment's allow-list, which override every rule.
    """
    try:
        reached = _unwrap_ipv4(ipaddress.ip_address(address.split("%", 1)[0]))
    except ValueError:
        return "its address is not an IP address"
    if _is_public(reached):
        return None
    if any(reached in ipaddress.ip_network(network) for network in allowed_networks):
        return None
    return "its address is not public and not on the allow-list"


def _unwrap_ipv4(address: IPAddress) -> IPAddress:
    """Return the IPv4 address that a connection to this one reaches, or the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if any(address in network for network in _IPV4_AT_END):
        return ipaddress.IPv4Address(int(address) & _IPV4_BITS)
    if address in _6TO4:
        return ipaddress.IPv4Address(int(address) >> 80 & _IPV4_BITS)
    return address


def _is_public(address: IPAddress) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _DENIED_IPV4)
    return address in _GLOBAL_IPV6 and not any(address in network for network in _DENIED_IPV6)
