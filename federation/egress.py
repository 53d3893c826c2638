"""The egress gate: checks the address of every outgoing connection.

The socket factory checks the address after name resolution. So a name cannot resolve to another
address after the check (DNS rebinding).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

from core.egress.policy import address_denied


class EgressDenied(OSError):
    """The egress policy denied a connection before a packet was sent; the text has the reason."""


def gated_socket_factory(allowed_networks: Sequence[str]) -> Callable[[Any], socket.socket]:
    """Return a function that opens a socket for an address, or raises `EgressDenied`.

    Args:
        allowed_networks: CIDR networks that are allowed although they are not public.
    """
    networks = tuple(allowed_networks)
    # Verdicts by address are cached, because the policy does not change while a process runs. The
    # cache is bounded, because the owners of agents choose the addresses.
    verdicts: dict[str, str | None] = {}

    def open_socket(address_info: Any) -> socket.socket:
        family, kind, protocol, _, address = address_info
        host = str(address[0])
        if host not in verdicts:
            if len(verdicts) >= 4096:
                verdicts.clear()
            verdicts[host] = address_denied(host, networks)
        reason = verdicts[host]
        if reason is not None:
            raise EgressDenied(reason)
        return socket.socket(family=family, type=kind, proto=protocol)

    return open_socket
