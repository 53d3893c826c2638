"""The egress policy: which addresses the service may open a connection to.

Pure, over a resolved address; `federation/egress.py` applies it at every connect. contract.md
section 3 (agent endpoints are checked at registration and again at every connect).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

# 64:ff9b::/96 (NAT64) and 2002::/16 (6to4) carry an IPv4 address that would be judged as public.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def address_denied(address: str, allowed_networks: Sequence[str]) -> str | None:
    """Return why a connection to this address is denied, None when it is allowed.

    Args:
        address: an IPv4 or IPv6 address in text form, scope id allowed, never a host name.
        allowed_networks: CIDR networks of the deployment's allow-list, which override every rule.
    """
    try:
        parsed = _unwrap_ipv4(ipaddress.ip_address(address.split("%", 1)[0]))
    except ValueError:
        return f"{address!r} is not an IP address"
    for network in allowed_networks:
        candidate = ipaddress.ip_network(network)
        if parsed.version == candidate.version and parsed in candidate:
            return None
    if parsed.is_global and not parsed.is_multicast:
        return None
    return f"{parsed} is not a public address and not on the allow-list"


def _unwrap_ipv4(address: IPAddress) -> IPAddress:
    """Return the IPv4 address inside an IPv6 one, which could hide a private address."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
