"""The egress policy: the addresses to which the service may open a connection.

The policy judges resolved addresses. `federation/egress.py` applies it to every connection. The
denied networks are those that IANA's special-purpose address registries list as not globally
reachable. The networks are listed here, because the table in Python's `ipaddress` differs between
Python versions. Pure.
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
        "100.64.0.0/10",  # shared address space of carriers (CGNAT)
        "127.0.0.0/8",  # this machine
        "169.254.0.0/16",  # link-local, and the metadata services of clouds
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
# The global unicast addresses that IANA allocates. All other IPv6 addresses are local, reserved, or
# contain an IPv4 address.
_GLOBAL_IPV6: Final = ipaddress.IPv6Network("2000::/3")
_DENIED_IPV6: Final = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, and Teredo
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
)
# Networks whose addresses end with an IPv4 address, in the last 32 bits: IPv4-mapped,
# IPv4-translated (SIIT), NAT64, local NAT64.
_IPV4_AT_END: Final = tuple(
    ipaddress.IPv6Network(network)
    for network in ("::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/96")
)
_6TO4: Final = ipaddress.IPv6Network("2002::/16")
_IPV4_BITS: Final = 0xFFFF_FFFF


def address_denied(address: str, allowed_networks: Sequence[str]) -> str | None:
    """Return why a connection to an address is denied, None if it is allowed.

    If an IPv6 address contains an IPv4 address, the IPv4 address is judged, because it could be
    private. The reason does not contain the address, because the owner of an agent sees the reason.
    With the address in it, an owner could register an internal host name and learn its address.

    Args:
        address: an IPv4 or IPv6 address as text, maybe with a scope id; never a host name.
        allowed_networks: the CIDR networks of the deployment's allow-list. Addresses in them are
            allowed even if they are not public.
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
    """Return the IPv4 address that an IPv6 address contains; otherwise the address itself."""
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
