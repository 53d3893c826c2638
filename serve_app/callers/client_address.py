"""Reads the client address of a request, as HAProxy reports it. Clients cannot forge it.

HAProxy sets the header `CLIENT_ADDRESS_HEADER` on every request, and replaces the header if the
client sent it. The header has a token and the client's address. The address is that of the
connection, or the address that one of `trusted_proxies` reports. The token is derived from the
deployment key. So a client that connects directly to a replica cannot set the address. Its request
counts under the address of its connection. `X-Forwarded-For` is not read here. Decision http-edge.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from typing import Any, Final

from core.trust.deployment_keys import DeploymentKeys, KeyPurpose, derived_keys

CLIENT_ADDRESS_HEADER: Final = b"x-callboard-peer"
UNKNOWN: Final = "unknown"

_ADDRESS_CHARS_MAX: Final = 45
# A provider usually assigns a /64 network to a customer. HAProxy counts by the same prefix.
_IPV6_PREFIX: Final = 64


def proxy_tokens(keys: DeploymentKeys) -> tuple[str, ...]:
    """Return the tokens that prove that HAProxy has set a header: 32 hex digits each.

    Args:
        keys: the deployment keys, the same on every machine. The token of the current key is first.
    """
    return tuple(key.hex()[:32] for key in derived_keys(keys, KeyPurpose.PEER_TOKEN))


class ClientAddresses:
    """Reads the client addresses of requests.

    Args:
        keys: the deployment keys; no keys for a replica without Callboard's HAProxy in front.
    """

    def __init__(self, keys: DeploymentKeys) -> None:
        self._prefixes = tuple(f"{token} ".encode() for token in proxy_tokens(keys))

    def address_of(self, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> str:
        """Return the address under which a request is counted; "unknown" without an address.

        An IPv6 address is returned as its /64 network, because one customer usually has all
        addresses of this network.
        """
        named = headers.get(CLIENT_ADDRESS_HEADER)
        if named is not None:
            for prefix in self._prefixes:
                if hmac.compare_digest(named[: len(prefix)], prefix):
                    return _counted(named[len(prefix) :].decode("ascii", "replace"))
        client = scope.get("client")
        return _counted(str(client[0])) if client else UNKNOWN


def _counted(address: str) -> str:
    if ":" not in address:
        return address[:_ADDRESS_CHARS_MAX] or UNKNOWN
    try:
        parsed = ipaddress.IPv6Address(address)
    except ValueError:
        return UNKNOWN
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    network = ipaddress.IPv6Network((parsed, _IPV6_PREFIX), strict=False)
    return str(network)
