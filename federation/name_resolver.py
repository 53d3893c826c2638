"""Resolves host names with c-ares (`aiodns`), so that a slow name does not delay other names.

Concurrent requests for the same name share one look-up. Addresses are cached for 10 s. One payer
can have at most 8/9 of the concurrent look-ups (`fair_share.py`), because the owners of agents
choose the names.

A timeout or SERVFAIL counts as a failure of the name only if the name servers have answered another
look-up in the last 10 s. Otherwise the name servers may be at fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import Any, Final

import aiodns
from aiodns import error as ares

from core.market.sharing.fair_share import Held, has_room

RESOLVED_S: Final = 10.0
RESOLVED_MAX: Final = 4_096
# The first addresses of a name, in the resolver's order. A bound is needed, because the owner of an
# agent chooses how many addresses a name has.
ADDRESSES_MAX: Final = 16
# The capacity for concurrent look-ups (`has_room`); a look-up needs a few kilobytes.
LOOKUPS_ROOM: Final = 1_024
# The timeout of the first try. c-ares doubles it for each further try. All tries together take 10
# to 15 s.
TRY_S: Final = 0.25
TRIES: Final = 6
# c-ares caches each answer for its TTL, without a bound. So the resolver is replaced after this
# number of look-ups.
CACHED_MAX: Final = 1_024
# For this time after an answer, the name servers are assumed to work.
ANSWERED_S: Final = 10.0

# The form of the results of `socket.getaddrinfo`.
ResolvedAddress = tuple[int, int, int, str, Any]
_Key = tuple[str, int]

_NO_SUCH_NAME: Final = (ares.ARES_ENOTFOUND, ares.ARES_ENODATA, ares.ARES_EBADNAME)
# With these errors, either the servers of the name or the name servers of this machine do not work.
_UNANSWERED: Final = (ares.ARES_ETIMEOUT, ares.ARES_ESERVFAIL, ares.ARES_EBADRESP)


class NameUnavailable(OSError):
    """A name could not be looked up, and the name itself is not the reason."""


class NameResolver:
    """The look-ups of one event loop.

    Args:
        servers: addresses of name servers, with ports; empty: the name servers of this machine.
    """

    def __init__(self, servers: Sequence[str] = ()) -> None:
        self._servers = servers
        self._ares: aiodns.DNSResolver | None = None
        self._resolved: dict[_Key, tuple[float, Sequence[ResolvedAddress]]] = {}
        self._lookups: dict[_Key, asyncio.Task[Sequence[ResolvedAddress]]] = {}
        self._held = Held()
        self._looked_up = 0
        self._answered_s = -ANSWERED_S

    @property
    def is_answered(self) -> bool:
        """Whether a name server has answered in the last `ANSWERED_S`."""
        return asyncio.get_running_loop().time() - self._answered_s < ANSWERED_S

    async def resolve(self, host: str, port: int, payer: str = "") -> Sequence[ResolvedAddress]:
        """Return the addresses of a host, at most `ADDRESSES_MAX`.

        The caller limits the time. A look-up continues if its callers are cancelled.

        Args:
            host: a name or an address.
            port: the port in the returned addresses.
            payer: the payer whose share of the look-ups is used.

        Raises:
            NameUnavailable: the payer has used its share of look-ups, no name server answers, or
                this machine has too few resources.
            OSError: the name has no address, or is not a valid name.
        """
        try:
            with contextlib.suppress(OSError):  # the host is a name
                return _numeric(host, port)
            key = (host.encode("idna").decode("ascii"), port)
        except ValueError as error:
            raise socket.gaierror(socket.EAI_NONAME, str(error)) from None
        known = self._resolved.get(key)
        if known is not None and known[0] > asyncio.get_running_loop().time():
            return known[1]
        lookup = self._lookups.get(key)
        if lookup is None:
            lookup = self._begin(key, payer)
        return await asyncio.shield(lookup)

    def close(self) -> None:
        """Cancel all look-ups."""
        for lookup in self._lookups.values():
            lookup.cancel()
        if self._ares is not None:
            self._ares.cancel()  # runs its callbacks now, while the loop is still open
            self._ares = None

    def _begin(self, key: _Key, payer: str) -> asyncio.Task[Sequence[ResolvedAddress]]:
        if not has_room(self._held.of(payer), self._held.total, LOOKUPS_ROOM):
            raise NameUnavailable("too many names are being looked up")
        if self._ares is None or self._looked_up % CACHED_MAX == 0:
            servers = self._servers or None
            try:
                self._ares = aiodns.DNSResolver(servers, timeout=TRY_S, tries=TRIES)
            except (OSError, ares.DNSError) as error:
                raise NameUnavailable(str(error)) from None
        self._looked_up += 1
        self._held.add(payer)
        lookup = self._lookups[key] = asyncio.create_task(self._look_up(key, self._ares))
        lookup.add_done_callback(lambda done: self._end(key, payer, done))
        return lookup

    def _end(self, key: _Key, payer: str, lookup: asyncio.Task[Sequence[ResolvedAddress]]) -> None:
        self._held.remove(payer)
        del self._lookups[key]
        if not lookup.cancelled():
            # Reads the error, because all callers may have been cancelled. asyncio logs errors that
            # are not read.
            lookup.exception()

    async def _look_up(self, key: _Key, ares_: aiodns.DNSResolver) -> Sequence[ResolvedAddress]:
        now_s = asyncio.get_running_loop().time
        try:
            found = (await ares_.getaddrinfo(key[0], port=key[1], type=socket.SOCK_STREAM)).nodes
        except ares.DNSError as error:
            code = error.args[0]
            if code in _UNANSWERED and self.is_answered:
                raise socket.gaierror(socket.EAI_AGAIN, "the name was not answered") from None
            if code not in _NO_SUCH_NAME:
                raise NameUnavailable(f"no name server answers: {error.args[-1]}") from None
            found = []
        if not found or found[0].ttl:  # an address from the hosts file has no TTL
            self._answered_s = now_s()
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "the name has no address")
        addresses = [
            (node.family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "",
             (node.addr[0].decode("ascii"), *node.addr[1:]))
            for node in found[:ADDRESSES_MAX]
        ]  # fmt: skip
        if len(self._resolved) >= RESOLVED_MAX:
            self._resolved.clear()
        self._resolved[key] = (now_s() + RESOLVED_S, addresses)
        return addresses


def _numeric(host: str, port: int) -> Sequence[ResolvedAddress]:
    """Return the address information of a numeric address.

    Raises:
        OSError: `host` is a name.
    """
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
