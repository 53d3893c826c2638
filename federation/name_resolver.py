"""Looks names up without a thread for each: a name that is never answered delays no other.

Theory of operation. c-ares asks the name servers of this machine (resolv.conf, hosts file, search
domains) and has one thread for any number of questions; a question without an answer costs two
small packets, asked again a few times. Requests that ask for the same name at the same time share a
look-up, and its addresses are kept for a while. The places for look-ups are shared out over payers,
because the owners of agents choose the names.

A name fails by itself when a name server says so. No answer at all says nothing of the name unless
the name servers have lately answered others; where there are no others, they are asked for a name
that does not exist. contract.md section 3; decision 0152.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import pycares

from core.market.sharing.fair_share import Held, has_room

RESOLVED_S: Final = 10.0
RESOLVED_MAX: Final = 4_096
# Of one name, in the resolver's order; an owner of agents chooses how many a name has.
ADDRESSES_MAX: Final = 16
# Look-ups at once, 8/9 of them of one payer; each is a few kilobytes.
LOOKUPS_ROOM: Final = 1_024
# The first try's time; each further one has twice the time of the last, 10 to 15 s in all, since
# c-ares takes some off at random. It learns how fast answers come, too, and then begins with this,
# its least: what one name has must not depend on how fast others were answered.
TRY_S: Final = 0.25
TRIES: Final = 6
# Look-ups until the resolver's own cache, which has no bound but time, is emptied.
CACHED_MAX: Final = 1_024
# How long an answer shows that the name servers are at work.
ANSWERED_S: Final = 10.0

# As of socket.getaddrinfo.
ResolvedAddress = tuple[int, int, int, str, Any]
_Key = tuple[str, int]

# What a name server says of a name, or c-ares of one that is none.
_NO_SUCH_NAME: Final = frozenset(
    (pycares.errno.ARES_ENOTFOUND, pycares.errno.ARES_ENODATA, pycares.errno.ARES_EBADNAME)
)
# What may be the name's failure, whose own servers are silent or broken, or that of ours.
_UNANSWERED: Final = frozenset(
    (pycares.errno.ARES_ETIMEOUT, pycares.errno.ARES_ESERVFAIL, pycares.errno.ARES_EBADRESP)
)


class NameUnavailable(OSError):
    """A name was not looked up, for a reason that is not the name's."""


class NameResolver:
    """The look-ups of one event loop.

    Args:
        servers: addresses of name servers, with ports; none: those of this machine.
    """

    def __init__(self, servers: Sequence[str] = ()) -> None:
        self._servers = servers
        self._channel: pycares.Channel | None = None
        self._resolved: dict[_Key, tuple[float, Sequence[ResolvedAddress]]] = {}
        self._lookups: dict[_Key, asyncio.Future[Sequence[ResolvedAddress]]] = {}
        self._held = Held()
        self._looked_up = 0
        # Whether a question is out that shows if the name servers work, and what waits for it.
        self._is_checking = False
        self._undecided: list[asyncio.Future[Sequence[ResolvedAddress]]] = []
        self._answered_s = -ANSWERED_S

    def __repr__(self) -> str:
        return f"<NameResolver lookups={self._held.total} payers={len(self._held)}>"

    @property
    def is_answered(self) -> bool:
        """Whether the name servers have answered lately."""
        return asyncio.get_running_loop().time() - self._answered_s < ANSWERED_S

    async def resolve(self, host: str, port: int, payer: str = "") -> Sequence[ResolvedAddress]:
        """Return a host's addresses, at most `ADDRESSES_MAX`.

        The caller bounds the time; a look-up whose callers have gone comes to its own end.

        Args:
            host: a name or an address.
            payer: whose share of the places a look-up takes.

        Raises:
            NameUnavailable: the payer has its share of look-ups, no name server is at work, or this
                machine has too little of something.
            OSError: the name has no address, or there can be no such name.
        """
        try:
            with contextlib.suppress(OSError):  # an address is itself
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
        """End every look-up."""
        for lookup in (*self._lookups.values(), *self._undecided):
            lookup.cancel()
        self._lookups.clear()
        self._undecided.clear()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _begin(self, key: _Key, payer: str) -> asyncio.Future[Sequence[ResolvedAddress]]:
        if not has_room(self._held.of(payer), self._held.total, LOOKUPS_ROOM):
            raise NameUnavailable("too many names are being looked up")
        self._looked_up += 1
        try:
            if self._channel is None:
                flags = pycares.ARES_FLAG_EDNS | pycares.ARES_FLAG_IGNTC  # no reply above a packet
                self._channel = pycares.Channel(
                    flags=flags, timeout=TRY_S, tries=TRIES, servers=self._servers or None
                )
            if self._looked_up % CACHED_MAX == 0:
                self._channel.reinit()
        except pycares.AresError as error:  # without a descriptor, for example
            raise NameUnavailable(str(error)) from None
        loop = asyncio.get_running_loop()
        if not self.is_answered and not self._is_checking:
            # No search domains, and new each time: the answer is in no cache.
            self._is_checking = True
            absent = f"callboard-{time.time_ns()}.invalid"
            checked = _in_loop(loop, self._end_check)
            with contextlib.suppress(pycares.AresError):  # not sent; its callback says so, too
                self._channel.query(absent, pycares.QUERY_TYPE_A, callback=checked)
        lookup: asyncio.Future[Sequence[ResolvedAddress]] = loop.create_future()
        lookup.add_done_callback(_retrieve)
        self._lookups[key] = lookup
        self._held.add(payer)
        end = partial(self._end, key, payer, lookup)
        self._channel.getaddrinfo(*key, type=socket.SOCK_STREAM, callback=_in_loop(loop, end))
        return lookup

    def _end(
        self,
        key: _Key,
        payer: str,
        lookup: asyncio.Future[Sequence[ResolvedAddress]],
        found: pycares.AddrInfoResult | None,
        error: int | None,
        is_asked: bool,
    ) -> None:
        self._held.remove(payer)
        if lookup.done():
            return  # closed
        del self._lookups[key]
        now_s = asyncio.get_running_loop().time()
        if is_asked and (error is None or error in _NO_SUCH_NAME):
            self._answered_s = now_s
        if found is not None and found.nodes:
            addresses = [_as_resolved(node) for node in found.nodes[:ADDRESSES_MAX]]
            if len(self._resolved) >= RESOLVED_MAX:
                self._resolved.clear()
            self._resolved[key] = (now_s + RESOLVED_S, addresses)
            lookup.set_result(addresses)
        elif error is None or error in _NO_SUCH_NAME:
            lookup.set_exception(socket.gaierror(socket.EAI_NONAME, "the name has no address"))
        elif error not in _UNANSWERED:
            lookup.set_exception(NameUnavailable(pycares.errno.strerror(error)))
        elif self._is_checking and not self.is_answered:
            self._undecided.append(lookup)
        else:
            self._end_unanswered(lookup)

    def _end_check(self, _: object, error: int | None, is_asked: bool) -> None:
        self._is_checking = False
        if is_asked and (error is None or error in _NO_SUCH_NAME):
            self._answered_s = asyncio.get_running_loop().time()
        while self._undecided:
            lookup = self._undecided.pop()
            if not lookup.done():
                self._end_unanswered(lookup)

    def _end_unanswered(self, lookup: asyncio.Future[Sequence[ResolvedAddress]]) -> None:
        """End a look-up without an answer: as a failure of the name, or of all name servers."""
        if self.is_answered:
            lookup.set_exception(socket.gaierror(socket.EAI_AGAIN, "the name was not answered"))
        else:
            lookup.set_exception(NameUnavailable("no name server answers"))


def _numeric(host: str, port: int) -> Sequence[ResolvedAddress]:
    """Return what an address is to a socket, without a look-up.

    Raises: OSError, `host` is a name.
    """
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)


def _as_resolved(node: pycares.AddrInfoNode) -> ResolvedAddress:
    address = (node.addr[0].decode("ascii"), *node.addr[1:])
    return node.family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address


def _in_loop(
    loop: asyncio.AbstractEventLoop, end: Callable[..., None]
) -> Callable[[Any, int | None], None]:
    """Return the callback that c-ares calls in its thread; `end` runs in the loop.

    What the hosts file or a cache says comes in this thread, and then `is_asked` is False.
    """
    here = threading.get_ident()

    def ended(found: object, error: int | None) -> None:
        is_asked = threading.get_ident() != here
        with contextlib.suppress(RuntimeError):  # the loop is closed, and asks nothing any more
            loop.call_soon_threadsafe(end, found, error, is_asked)

    return ended


def _retrieve(lookup: asyncio.Future[Sequence[ResolvedAddress]]) -> None:
    """Retrieve a failure, which asyncio logs otherwise, also when all that asked have gone."""
    if not lookup.cancelled():
        lookup.exception()
