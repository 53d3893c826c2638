"""The egress gate: checks the resolved address of every outgoing connection.

The check is in the socket factory, after name resolution, which prevents DNS rebinding.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

from core.topology.policy import address_denied


class EgressDenied(OSError):
    """The egress policy refused a connection before a packet was sent; its text says why."""


def gated_socket_factory(allowed_networks: Sequence[str]) -> Callable[[Any], socket.socket]:
    """Return a factory of sockets by address information that refuses denied addresses.

    Args:
        allowed_networks: CIDR networks that are allowed besides public addresses.
    """
    networks = tuple(allowed_networks)
    # One verdict per address: the policy is constant for the life of a process. Bounded, because
    # the owners of agents choose the addresses.
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
