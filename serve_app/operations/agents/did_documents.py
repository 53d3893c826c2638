"""Reads the keys of unproven `did:web` DIDs from their DID documents.

Theory of operation: when a signed card of an unproven `did:web` arrives, the replica fetches its
document. Concurrent requests for the same DID share one fetch. The keys are cached, and so is the
absence of a document. The fetches of an account per minute and the concurrent fetches of a replica
are limited. Each account and each host gets only a fraction of the free concurrent fetches. So a
host that does not answer does not block other hosts, and a flood of DIDs causes few requests to one
host. The key of a proven DID is in the registry, so the DID's document is not read again. Decision
signed-requests-and-claims.
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
from serve_app.callers.call_windows import CallWindows
from serve_app.callers.shares import Shares

log = logging.getLogger("callboard.api")

# How long the keys of a document, and the absence of a document, are cached.
KEPT_MS: Final = 600_000
ABSENT_MS: Final = 30_000
# The most fetches per account and minute, and the most concurrent fetches of one replica.
FETCHES_PER_OWNER: Final = 10
FETCHES_AT_ONCE: Final = 16
# An account, and a host, may have at most 1/4 of the free concurrent fetches.
FETCHES_PART: Final = 4
# The most cached documents, and the most accounts that are counted separately.
KNOWN_MAX: Final = 4_096
DOCUMENT_BYTES_MAX: Final = 64 * 1024

FetchDocument = Callable[[str], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class _Known:
    """The cached keys of a document, and the expiry of the cache entry.

    `keys`: empty if the document could not be read. `until_ms`: on the monotonic clock.
    """

    keys: tuple[str, ...]
    until_ms: int


class DidDocuments:
    """Fetches and caches DID documents for one replica.

    Args:
        fetch: returns the text of the document at a URL.
    """

    def __init__(self, fetch: FetchDocument) -> None:
        self._fetch = fetch
        self._known: dict[str, _Known] = {}
        self._fetching: dict[str, asyncio.Task[tuple[str, ...]]] = {}
        self._fetches = CallWindows(FETCHES_PER_OWNER, KNOWN_MAX)  # Counts per account.
        self._of_accounts = Shares(FETCHES_AT_ONCE, FETCHES_PART)
        self._of_hosts = Shares(FETCHES_AT_ONCE, FETCHES_PART)

    async def keys(self, did: str, account: str, clock_ms: int) -> tuple[str, ...]:
        """Return the Ed25519 keys of a DID's document; empty if the document cannot be read.

        Args:
            did: a `did:web`.
            account: the DID or the address under which a fetch is counted.
            clock_ms: the time of a monotonic clock, in milliseconds.

        Raises:
            ServiceError: INVALID_SIGNATURE: the DID names no https host; RATE_LIMITED or
                OVERLOADED.
        """
        url = document_url(did)
        if url is None:
            raise ServiceError(ErrorCode.INVALID_SIGNATURE, f"{did} does not name an https host")
        known = self._known.get(did)
        if known is not None and clock_ms < known.until_ms:
            return known.keys
        if did not in self._fetching:
            host = urlsplit(url).hostname or ""  # All ports of a host share its limit.
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
