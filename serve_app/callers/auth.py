"""Authentication: converts an API key, an access token or a DID's signature to a `Principal`.

This module only identifies the caller; `core/trust/access.py` decides what the caller may do. API
keys are looked up by their SHA-256 hash (`credential_lookups.py`). Access tokens
(`access_tokens.py`) and signatures (`signed_requests.py`) are verified, and their DIDs are looked
up, because a revoked DID is refused. Durations use a monotonic clock; expiries of keys use the wall
clock.
Reference: http.md (Authentication); decisions limits-and-admission and signed-requests-and-claims.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from core.errors import ServiceError
from core.settings import Settings
from core.trust.access import (
    BY_ADDRESS,
    FREE_TIER,
    HEARTBEAT,
    SUGGEST,
    Principal,
    agent_holder,
)
from core.trust.requests.did_standing import STRANGER, DidStanding, signing_key
from core.trust.tokens import PREFIX, read_heartbeat_token
from serve_app.callers.access_tokens import AccessTokens, FetchKeySet, IssuerKeys
from serve_app.callers.credential_lookups import CredentialLookups, WrongCredentials
from serve_app.callers.signed_requests import (
    SIGNATURE_HEADER,
    FindStandings,
    SignedRequest,
    SignedRequests,
    TakeNonces,
    unauthorized,
)

# The most API keys, and the most DIDs, that a replica caches.
CACHED_MAX: Final = 10_000

KEY_PREFIX: Final = "cb_"
# The prefix of the key id of a caller with a heartbeat token. The token's revision follows.
HEARTBEAT_KEY_ID: Final = "heartbeat:"

_CREDENTIAL_BYTES_MAX: Final = 8_192
_FREE_TIER: Final = Principal(FREE_TIER, FREE_TIER, frozenset({SUGGEST}), rate_class=BY_ADDRESS)


@dataclass(frozen=True, slots=True)
class StoredKey:
    """An API key that the ledger stores. `ends_ms`: its expiry, Unix milliseconds; None: never."""

    principal: Principal
    ends_ms: int | None


@dataclass(frozen=True, slots=True)
class Unproven:
    """An API key that must be looked up.

    `did`: the owner at the last look-up; None if the key is not cached.
    """

    digest: bytes
    did: str | None


@dataclass(frozen=True, slots=True)
class GivenToken:
    """An access token that is not verified yet."""

    text: bytes


# A credential whose caller is not known yet.
Pending = Unproven | GivenToken | SignedRequest

# SHA-256 hashes of keys -> one stored key each, None for an unknown or revoked key.
FindKeys = Callable[[list[bytes]], Awaitable[Sequence[StoredKey | None]]]


@dataclass(frozen=True, slots=True)
class CredentialSources:
    """The functions that read stored credentials and accept nonces.

    `fetch_jwks`: fetches the key set of the issuer of access tokens; None without such an issuer.
    """

    find_keys: FindKeys
    find_standings: FindStandings
    take_nonces: TakeNonces
    fetch_jwks: FetchKeySet | None = None


def new_api_key() -> str:
    """Return a new API key: a prefix, which can be searched for in logs, and 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def key_hash(api_key: str) -> bytes:
    """Return the hash under which a key is stored. A key has 256 random bits and needs no salt."""
    return hashlib.sha256(api_key.encode()).digest()


class Authenticator:
    """Identifies the caller of a request by its headers.

    Args:
        sources: read stored credentials.
        settings: the limits, the free-tier key, and the keys of access tokens and heartbeat tokens.
            If a key is not set, no credential of its kind is accepted.
        wrong: counts wrong credentials; None: a counter with the default rate.
        cached_max: the most API keys, and the most DIDs, that are cached.
    """

    def __init__(
        self,
        sources: CredentialSources,
        settings: Settings,
        *,
        wrong: WrongCredentials | None = None,
        cached_max: int = CACHED_MAX,
    ) -> None:
        self._free_tier = key_hash(settings.free_tier_key) if settings.free_tier_key else b""
        self._deployment_keys = settings.deployment_keys
        self._wrong = wrong or WrongCredentials(settings.share_of_free)
        self._keys = CredentialLookups(
            "keys", sources.find_keys, self._wrong, remembered_max=cached_max
        )
        self._standings = CredentialLookups(
            "DIDs", sources.find_standings, self._wrong, remembered_max=cached_max
        )
        self._tokens = AccessTokens(IssuerKeys(sources.fetch_jwks), settings)
        self._signed = SignedRequests(self._standings, sources.take_nonces, self._wrong, settings)

    def __repr__(self) -> str:
        return f"<Authenticator keys={self._keys!r} dids={self._standings!r}>"

    def recognise(
        self, scope: Mapping[str, Any], headers: Mapping[bytes, bytes], now_ms: int, clock_ms: int
    ) -> Principal | Pending | None:
        """Identify the caller without a read of the database.

        If the request has several credentials, `x-api-key` counts first, then `Authorization`, then
        a signature.

        Args:
            scope: the ASGI scope; a signature covers its method, path and query.
            headers: the headers of the scope, by their names.
            now_ms: Unix time, milliseconds.
            clock_ms: the time of a monotonic clock, milliseconds.

        Returns:
            The caller; or a credential that `prove` must verify; or None without a credential.

        Raises:
            ServiceError: UNAUTHORIZED: the credential is not valid.
        """
        credential = headers.get(b"x-api-key")
        if credential is None:
            authorization = headers.get(b"authorization")
            if authorization is None:
                if SIGNATURE_HEADER in headers:
                    return self._signed.read(headers, scope["method"], _target(scope), now_ms)
                return None
            kind, _, credential = authorization.partition(b" ")
            # HAProxy strips the same characters (haproxy_rate_limits.py).
            credential = credential.strip(b" \t")
            if kind.lower() != b"bearer":
                raise unauthorized("the Authorization header is not of the Bearer scheme")
        if not 0 < len(credential) <= _CREDENTIAL_BYTES_MAX:
            raise unauthorized("the API key is empty or too long")
        # An API key contains no full stop; an access token contains two.
        if credential.count(b".") == 2 and b"x-api-key" not in headers:
            return GivenToken(credential)
        if credential.startswith(PREFIX.encode()):
            return self._from_heartbeat_token(credential)
        digest = hashlib.sha256(credential).digest()
        if hmac.compare_digest(digest, self._free_tier):
            return _FREE_TIER
        known, is_fresh = self._keys.remembered(digest, clock_ms)
        if known is None:
            return Unproven(digest, None)
        if is_fresh:
            return _living(known, now_ms)
        return Unproven(digest, known.principal.did)

    async def prove(self, pending: Pending, address: str, now_ms: int, clock_ms: int) -> Principal:
        """Look up or verify a credential, and return its caller.

        Args:
            pending: the credential that `recognise` has returned.
            address: the client's address.
            now_ms: Unix time, milliseconds.
            clock_ms: the time of a monotonic clock, milliseconds.

        Raises:
            ServiceError: UNAUTHORIZED; RATE_LIMITED: too many requests of this address or DID;
                OVERLOADED: too many requests of all callers; LEDGER_UNAVAILABLE.
        """
        match pending:
            case Unproven(digest, did):
                stored = await self._keys.look_up(
                    digest, address, clock_ms, is_trusted=did is not None
                )
                if stored is None:
                    raise unauthorized("the API key is not known")
                return _living(stored, now_ms)
            case GivenToken(text):
                return await self._from_token(text, address, clock_ms)
            case SignedRequest():
                return await self._signed.prove(pending, address, clock_ms)

    async def still_opens(
        self, principal: Principal, address: str, now_ms: int, clock_ms: int
    ) -> bool:
        """Return whether the credential of a long request, such as a stream, is still valid.

        Args:
            principal: the caller, as `recognise` or `prove` has returned it.
            address, now_ms, clock_ms: as for `prove`.

        Raises:
            ServiceError: OVERLOADED, LEDGER_UNAVAILABLE.
        """
        if principal.expires_ms is not None and principal.expires_ms <= now_ms:
            return False
        if principal.key_hash:
            key, is_fresh = self._keys.remembered(principal.key_hash, clock_ms)
            if not is_fresh:
                key = await self._keys.look_up(
                    principal.key_hash, address, clock_ms, is_trusted=True
                )
            return key is not None and (key.ends_ms is None or key.ends_ms > now_ms)
        standing = await self._standing(principal.did, address, clock_ms) or STRANGER
        if principal.signing_key not in (None, signing_key(principal.did, standing)):
            return False
        return principal.is_admin or not standing.is_revoked

    async def _standing(self, did: str, address: str, clock_ms: int) -> DidStanding | None:
        standing, is_fresh = self._standings.remembered(did, clock_ms)
        if is_fresh:
            return standing
        return await self._standings.look_up(did, address, clock_ms, is_trusted=True)

    async def _from_token(self, text: bytes, address: str, clock_ms: int) -> Principal:
        if self._wrong.is_spent(address, clock_ms):
            async with self._wrong.place(address):
                await self._wrong.pause()
        try:
            principal = await self._tokens.principal(text, clock_ms)
        except ServiceError:
            self._wrong.take(address, clock_ms)
            raise
        standing = await self._standing(principal.did, address, clock_ms)
        if standing is not None and standing.is_revoked and not principal.is_admin:
            raise unauthorized(f"{principal.did} is revoked")
        return principal

    def _from_heartbeat_token(self, token: bytes) -> Principal:
        found = read_heartbeat_token(self._deployment_keys, token.decode("ascii", "replace"))
        if found is None:
            raise unauthorized("the heartbeat token is not valid")
        did, revision = found
        key_id = f"{HEARTBEAT_KEY_ID}{revision}"
        return Principal(agent_holder(did), key_id, frozenset({HEARTBEAT}))


def _target(scope: Mapping[str, Any]) -> bytes:
    """Return the path and the query as the client sent them, not decoded."""
    query: bytes = scope.get("query_string", b"")
    path: bytes = (scope.get("raw_path") or b"").partition(b"?")[0]
    return path + b"?" + query if query else path


def _living(stored: StoredKey, now_ms: int) -> Principal:
    if stored.ends_ms is not None and stored.ends_ms <= now_ms:
        raise unauthorized("the API key has expired")
    return stored.principal
