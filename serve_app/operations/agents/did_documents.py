"""The keys of `did:web` DIDs that are about to be proven, from their documents.

Theory of operation: a document is fetched when a signed card of an unproven `did:web` arrives, once
for all who ask meanwhile, and its keys are remembered for a while; so is that it was not there. An
account has a number of fetches a minute, a replica a number at a time, and of those an account and
a host have a share of what is free: hosts that do not answer hold no other's place, and a flood of
DIDs asks each foreign host little. What is proven has its key in the registry, and no document is
read for it again. Reference: decision signed-requests-and-claims.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from core.errors import ErrorCode, ServiceError
from core.trust.identity.did_web import document_keys, document_url
from federation.documents import DocumentUnavailable
from serve_app.callers.shares import Shares
from serve_app.callers.windows import AddressWindows

log = logging.getLogger("callboard.api")

KEPT_MS: Final = 600_000
# Of a document that was not there.
ABSENT_MS: Final = 30_000
# A minute.
FETCHES_PER_OWNER: Final = 10
FETCHES_AT_ONCE: Final = 16
# An account, and a host, have at most one in so many of what is free of those.
FETCHES_PART: Final = 4
# Documents and owners that are remembered.
KNOWN_MAX: Final = 4_096
DOCUMENT_BYTES_MAX: Final = 64 * 1024

FetchDocument = Callable[[str], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class _Known:
    """The keys of a document, none of one that is not there, and until when they count."""

    keys: tuple[str, ...]
    until_ms: int


class DidDocuments:
    """The documents of one replica.

    Args:
        fetch: a document's text by its URL.
    """

    def __init__(self, fetch: FetchDocument) -> None:
        self._fetch = fetch
        self._known: dict[str, _Known] = {}
        self._fetching: dict[str, asyncio.Task[tuple[str, ...]]] = {}
        self._fetches = AddressWindows(FETCHES_PER_OWNER, KNOWN_MAX)  # by owner
        self._of_accounts = Shares(FETCHES_AT_ONCE, FETCHES_PART)
        self._of_hosts = Shares(FETCHES_AT_ONCE, FETCHES_PART)

    async def keys(self, did: str, account: str, clock_ms: int) -> tuple[str, ...]:
        """Return the Ed25519 keys of a DID's document; none when it is not there.

        Args:
            account: on whose a fetch is: a DID, or the address of strangers.
            clock_ms: a monotonic clock, milliseconds.

        Raises:
            ServiceError: INVALID_SIGNATURE, the DID names no place; RATE_LIMITED or OVERLOADED.
        """
        url = document_url(did)
        if url is None:
            raise ServiceError(ErrorCode.INVALID_SIGNATURE, f"{did} does not name an https host")
        known = self._known.get(did)
        if known is not None and clock_ms < known.until_ms:
            return known.keys
        if did not in self._fetching:
            host = urlsplit(url).hostname or ""  # whatever its port
            self._take_turn(account, host, clock_ms)
            fetching = asyncio.ensure_future(self._read(did, url, clock_ms))
            fetching.add_done_callback(lambda _: self._give_back(account, host))
            self._fetching[did] = fetching
        return await asyncio.shield(self._fetching[did])

    def _take_turn(self, account: str, host: str, clock_ms: int) -> None:
        window = self._fetches.take(account, clock_ms)
        if not window.is_allowed:
            raise ServiceError(
                ErrorCode.RATE_LIMITED,
                f"{FETCHES_PER_OWNER} DID documents a minute were fetched for {account}, which is"
                " the limit",
                retry_after_s=-(-(window.ends_ms - clock_ms) // 1_000),
            )
        code = ErrorCode.OVERLOADED
        if self._of_accounts.is_taken():
            detail = f"{FETCHES_AT_ONCE} DID documents are being read"
        elif not self._of_accounts.take(account):
            code, detail = ErrorCode.RATE_LIMITED, f"too many DID documents are read for {account}"
        elif not self._of_hosts.take(host):
            self._of_accounts.give_back(account)
            detail = f"too many DID documents of {host} are being read"
        else:
            return
        self._fetches.give_back(account, clock_ms)
        raise ServiceError(code, detail, retry_after_s=1)

    def _give_back(self, account: str, host: str) -> None:
        self._of_accounts.give_back(account)
        self._of_hosts.give_back(host)

    async def _read(self, did: str, url: str, clock_ms: int) -> tuple[str, ...]:
        keys: tuple[str, ...] = ()
        kept_ms = ABSENT_MS
        try:
            keys, kept_ms = document_keys(await self._fetch(url), did), KEPT_MS
        except (DocumentUnavailable, ValueError) as error:
            log.warning("a DID's document was not read did=%s error=%s", did, error)
        finally:
            del self._fetching[did]
        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[did] = _Known(keys, clock_ms + kept_ms)
        return keys
