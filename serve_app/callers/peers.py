"""The address a request comes from, as HAProxy says it: no client can choose it.

HAProxy sets one header on every request, replacing any that the client sent: a token and the
address of the connection, or of whom one of `trusted_proxies` speaks for (decision http-edge). The
token
is derived from the deployment key, so a request that reaches a replica's own port past HAProxy
cannot name an address: it counts under its own connection's. `X-Forwarded-For` is not read here.
Decision http-edge.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping
from typing import Any, Final

from core.trust.deployment_keys import DeploymentKeys, KeyPurpose, derived_keys

PEER_HEADER: Final = b"x-callboard-peer"
UNKNOWN: Final = "unknown"

_ADDRESS_CHARS_MAX: Final = 45
# What one customer of a provider usually holds of IPv6; HAProxy counts by the same prefix.
_IPV6_PREFIX: Final = 64


def peer_tokens(keys: DeploymentKeys) -> tuple[str, ...]:
    """Return the tokens by which replicas know that a header was set by HAProxy, 32 hex digits.

    Args:
        keys: the deployment's, the same on every machine. The token of the one in use is first.
    """
    return tuple(key.hex()[:32] for key in derived_keys(keys, KeyPurpose.PEER_TOKEN))


class Peers:
    """Reads the source address of requests.

    Args:
        keys: the deployment's; none where no HAProxy of ours stands in front.
    """

    def __init__(self, keys: DeploymentKeys) -> None:
        self._prefixes = tuple(f"{token} ".encode() for token in peer_tokens(keys))

    def address_of(self, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> str:
        """Return the address that a request is counted under, "unknown" when there is none.

        IPv4 as it is, IPv6 by its /64 network: its holder has all addresses of it.
        """
        named = headers.get(PEER_HEADER)
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
