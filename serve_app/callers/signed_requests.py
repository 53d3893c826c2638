"""Authenticates requests that are signed with a DID's key. Each signature is accepted only once.

The steps, cheapest first:
1. Read the headers, and check the signature's time by this replica's clock.
2. Verify the signature with the key of the DID.
3. Check that the DID is not revoked.
4. Count the signed request.
5. Store the nonce in the database, which refuses a nonce that any replica has accepted before.
6. After the body is read, check that it has the signed digest.
A failed verification counts as a wrong credential of the client's address. If the DID must be
looked up before the signature is verified, the look-up is limited like that of an unknown API key.
Reference: http.md (Authentication); decision signed-requests-and-claims.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from actors.transport.channel import Channel
from core.errors import ErrorCode, ServiceError
from core.records.bounds import is_did
from core.settings import Settings
from core.trust.access import DID_KEY_ID, PEER, Principal
from core.trust.did_key import key_of_did
from core.trust.requests.did_standing import (
    STRANGER,
    DidStanding,
    scopes_of_signer,
    signing_key,
)
from core.trust.requests.request_signature import (
    AGE_S_MAX,
    DIGEST,
    METHOD,
    TARGET,
    is_digest_of,
    signed_text,
)
from core.trust.requests.signature_fields import (
    SignatureDefect,
    SignatureFields,
    read_digests,
    read_signature,
)
from core.trust.signatures import is_signed_by_key, key_bytes
from ledger.features.nonces import Nonce
from serve_app.callers.call_windows import ADDRESSES_MAX, CallWindows
from serve_app.callers.credential_lookups import (
    BATCH,
    WAITING_MAX,
    CredentialLookups,
    WrongCredentials,
)

# The signed requests per minute of a DID, and of all callers of a replica. The requests of unknown
# DIDs count under the client's address. The total bounds the number of nonces, which are stored for
# 11 min.
SIGNED_RATE: Final = 8_000
SIGNED_TOTAL_RATE: Final = 60_000

SIGNATURE_HEADER: Final = b"signature-input"
# Hashing a larger body would block the event loop too long, so it is done in another thread.
_HASHED_IN_LOOP_BYTES_MAX: Final = 512 * 1024
_ALL: Final = ""

# DIDs -> the stored standing of each DID, None for an unknown DID.
FindStandings = Callable[[list[str]], Awaitable[Sequence[DidStanding | None]]]
# Nonces -> whether each nonce is accepted. It must be new, and its signature must have been created
# recently by the database's clock.
TakeNonces = Callable[[list[Nonce]], Awaitable[Sequence[bool]]]


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request with a signature that is not verified yet.

    `message`: the signed bytes. `digests`: the signed digests of the body; None if the signature
    covers no digest.
    """

    fields: SignatureFields
    message: bytes
    digests: Mapping[str, bytes] | None

    async def check_body(self, body: bytes) -> None:
        """Refuse a body that does not have the signed digest.

        Raises:
            ServiceError: UNAUTHORIZED.
        """
        if not body and self.digests is None:
            return
        if self.digests is None:
            raise unauthorized(f"the request has a body, but its signature does not cover {DIGEST}")
        if len(body) > _HASHED_IN_LOOP_BYTES_MAX:
            is_signed = await asyncio.to_thread(is_digest_of, self.digests, body)
        else:
            is_signed = is_digest_of(self.digests, body)
        if not is_signed:
            raise unauthorized(f"the body does not match the signed {DIGEST}")


class SignedRequests:
    """Authenticates the callers of signed requests.

    Args:
        standings: looks up DIDs.
        take_nonces: stores a batch of nonces.
        wrong: limits the wrong credentials of each address.
        settings: the URLs of this service.
        rate: signed requests per minute and DID.
        total_rate: signed requests per minute of all callers of this replica.
    """

    def __init__(
        self,
        standings: CredentialLookups[str, DidStanding],
        take_nonces: TakeNonces,
        wrong: WrongCredentials,
        settings: Settings,
        *,
        rate: int = SIGNED_RATE,
        total_rate: int = SIGNED_TOTAL_RATE,
    ) -> None:
        self._standings = standings
        self._wrong = wrong
        self._bases = bases_by_host((*settings.own_urls, *settings.signed_urls))
        self._counts = CallWindows(rate, ADDRESSES_MAX)
        self._all = CallWindows(total_rate, 1)
        self._nonces: Channel[Nonce, bool] = Channel(
            "nonces", take_nonces, capacity=WAITING_MAX, batch_size=BATCH
        )

    def read(
        self, headers: Mapping[bytes, bytes], method: str, target: bytes, now_ms: int
    ) -> SignedRequest:
        """Read the signature of a request, without verifying it.

        Args:
            headers: the headers of the request.
            method: the HTTP method.
            target: the path and the query as the client sent them.
            now_ms: Unix time, milliseconds.

        Raises:
            ServiceError: UNAUTHORIZED: the signature is malformed, too old or expired, or the Host
                header is unknown.
        """
        try:
            fields = read_signature(headers[SIGNATURE_HEADER], headers.get(b"signature"))
            if not is_did(fields.did):
                raise SignatureDefect("the signature's keyid is not a DID")
            values = {METHOD: method, TARGET: self._target(headers.get(b"host", b""), target)}
            digests = None
            if DIGEST in fields.covered:
                given = headers.get(DIGEST.encode(), b"").strip()
                digests = read_digests(given)
                values[DIGEST] = given.decode("ascii")
        except SignatureDefect as defect:
            raise unauthorized(str(defect)) from None
        now_s = now_ms // 1_000
        if abs(now_s - fields.created_s) > AGE_S_MAX:
            raise unauthorized(
                f"the signature was created at {fields.created_s}, expected within {AGE_S_MAX} s"
                f" of {now_s}"
            )
        if fields.expires_s is not None and fields.expires_s <= now_s:
            raise unauthorized(f"the signature has expired at {fields.expires_s}")
        message = signed_text(fields.covered, fields.parameters, values)
        return SignedRequest(fields, message, digests)

    async def prove(self, request: SignedRequest, address: str, clock_ms: int) -> Principal:
        """Verify a signed request, store its nonce, and return its caller.

        Args:
            request: the request, as `read` has returned it.
            address: the client's address.
            clock_ms: the time of a monotonic clock, milliseconds.

        Raises:
            ServiceError: UNAUTHORIZED; RATE_LIMITED or OVERLOADED: too many requests;
                LEDGER_UNAVAILABLE.
        """
        did = request.fields.did
        known, is_fresh = self._standings.remembered(did, clock_ms)
        is_own_key = key_of_did(did) is not None
        if (is_own_key or known is not None) and self._wrong.is_spent(address, clock_ms):
            async with self._wrong.place(address):
                await self._wrong.pause()
        key = ""
        if is_own_key:
            key = self._verify(request, STRANGER, address, clock_ms)
        if not is_fresh:
            is_trusted = is_own_key or known is not None
            known = await self._standings.look_up(did, address, clock_ms, is_trusted=is_trusted)
        standing = known or STRANGER
        if not is_own_key:
            key = self._verify(request, standing, address, clock_ms)
        if standing.is_revoked:
            raise unauthorized(f"{did} is revoked")
        await self._take_nonce(request, address if known is None else did, address, clock_ms)
        return Principal(
            did=did,
            key_id=DID_KEY_ID,
            scopes=scopes_of_signer(did, standing),
            rate_class="standard" if standing.peer_key is None else PEER,
            is_stranger=known is None,
            signing_key=key,
        )

    def _target(self, host: bytes, target: bytes) -> str:
        base = self._bases.get(host.decode("latin-1").lower())
        if base is None:
            raise SignatureDefect(
                "the Host header names no address under which this service takes signed requests"
                " (settings public_url and signed_urls)"
            )
        try:
            return base + target.decode("ascii")
        except UnicodeDecodeError:
            raise SignatureDefect("the path or the query is not ASCII") from None

    def _verify(
        self, request: SignedRequest, standing: DidStanding, address: str, clock_ms: int
    ) -> str:
        """Return the key that verifies the signature, in its stored form.

        Raises:
            ServiceError: UNAUTHORIZED.
        """
        fields = request.fields
        key = signing_key(fields.did, standing)
        if key is None or not is_signed_by_key(key_bytes(key), request.message, fields.signature):
            self._wrong.take(address, clock_ms)
            why = (
                "no key is known for" if key is None else "the signature does not match the key of"
            )
            raise unauthorized(f"{why} {fields.did}")
        return key

    async def _take_nonce(
        self, request: SignedRequest, counted: str, address: str, clock_ms: int
    ) -> None:
        if not self._counts.take(counted, clock_ms).is_allowed:
            raise ServiceError(
                ErrorCode.RATE_LIMITED,
                f"too many signed requests of {counted} in a minute",
                retry_after_s=_seconds_left(self._counts, counted, clock_ms),
            )
        if not self._all.take(_ALL, clock_ms).is_allowed:
            raise ServiceError(
                ErrorCode.OVERLOADED,
                "too many signed requests in a minute",
                retry_after_s=_seconds_left(self._all, _ALL, clock_ms),
            )
        fields = request.fields
        nonce = Nonce(fields.did, fields.nonce, fields.created_s)
        if not await self._nonces.request(nonce):
            # A replay must not use up the rate limit of the DID whose request it repeats.
            self._counts.give_back(counted, clock_ms)
            self._wrong.take(address, clock_ms)
            raise unauthorized(
                "the signature's nonce was used before, or the signature was not created within"
                f" {AGE_S_MAX} s of the database's time and after the database's start"
            )


def bases_by_host(urls: Sequence[str]) -> dict[str, str]:
    """Return the part of this service's URLs before the request's path, keyed by Host header.

    Args:
        urls: the addresses of this service, each `http(s)://host[:port][/path]`.
    """
    found: dict[str, str] = {}
    for url in urls:
        parts = urlsplit(url)
        host = parts.netloc.lower()
        found.setdefault(host, f"{parts.scheme}://{host}{parts.path.rstrip('/')}")
    return found


def unauthorized(detail: str) -> ServiceError:
    """Return the refusal (UNAUTHORIZED) of a credential."""
    return ServiceError(ErrorCode.UNAUTHORIZED, detail)


def _seconds_left(counts: CallWindows, counted: str, clock_ms: int) -> int:
    window = counts.find(counted, clock_ms)
    return 1 if window is None else max(1, -(-(window.ends_ms - clock_ms) // 1_000))
