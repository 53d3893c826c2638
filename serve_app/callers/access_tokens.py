"""Verifies access tokens (JWT) with a shared secret, or with the rotating keys of an issuer.

Each key has one algorithm: HS256 for the secret, RS256 or EdDSA for published keys. A token is
verified with the algorithm of its key; a token that names another algorithm is refused.

Theory of operation: the issuer's key set is fetched when the first token needs it. If a token needs
the key set and the set is older than `REFRESH_S`, it is fetched again in the background. A token
with an unknown `kid` causes a fetch and waits for it. But at most one fetch is made per `PAUSE_S`,
so invented ids cost little. While the issuer is unreachable, the last fetched keys stay valid for
`KEPT_S`.
Reference: http.md (Authentication); RFC 7519, RFC 7517, decision signed-requests-and-claims.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from core.errors import ErrorCode, ServiceError
from core.json_text import read_foreign_json
from core.records.bounds import TIME_MS_MAX, is_did
from core.settings import Settings
from core.trust.access import ADMIN, DEFAULT_SCOPES, JWT_KEY_ID, RIGHTS, Principal
from federation.documents import DocumentUnavailable

# REFRESH_S: the age at which the issuer's keys are fetched again. PAUSE_S: the shortest time
# between two fetches. KEPT_S: how long keys stay valid while the issuer is unreachable.
REFRESH_S: Final = 300
PAUSE_S: Final = 30
KEPT_S: Final = 3_600
# The permitted difference between the clocks of the issuer and this service.
LEEWAY_S: Final = 30

log = logging.getLogger("callboard.api")

HS256: Final = "HS256"
RS256: Final = "RS256"
EDDSA: Final = "EdDSA"
KEYS_MAX: Final = 100
_RSA_BITS_MIN: Final = 2_048
_SCOPES_CHARS_MAX: Final = 4_096

FetchKeySet = Callable[[], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class _VerifyingKey:
    """A key, and the only algorithm that it may verify."""

    algorithm: str
    key: Any


class IssuerKeys:
    """The cached key set of the issuer.

    Args:
        fetch: returns the text of the key set; None without an issuer that publishes one.
        refresh_s: the age at which the keys are fetched again, seconds.
        pause_s: the shortest time between two fetches, seconds.
        kept_s: how long fetched keys stay valid while the issuer is unreachable, seconds.
    """

    def __init__(
        self,
        fetch: FetchKeySet | None,
        *,
        refresh_s: int = REFRESH_S,
        pause_s: int = PAUSE_S,
        kept_s: int = KEPT_S,
    ) -> None:
        self._fetch = fetch
        self._refresh_ms = refresh_s * 1_000
        self._pause_ms = pause_s * 1_000
        self._kept_ms = kept_s * 1_000
        self._keys: dict[str, _VerifyingKey] = {}
        self._fetched_ms: int | None = None
        self._tried_ms: int | None = None
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, kid: str, clock_ms: int) -> _VerifyingKey | None:
        """Return the key with an id; None if the key is unknown, or no valid key set is cached.

        Args:
            kid: the id of the key.
            clock_ms: the time of a monotonic clock, milliseconds.
        """
        if self._fetch is None:
            return None
        is_old = self._fetched_ms is None or clock_ms - self._fetched_ms >= self._refresh_ms
        if (is_old or kid not in self._keys) and self._may_try(clock_ms):
            self._tried_ms = clock_ms
            self._fetching = asyncio.ensure_future(self._refresh(self._fetch, clock_ms))
        is_kept = self._fetched_ms is not None and clock_ms - self._fetched_ms < self._kept_ms
        if self._fetching is not None and (kid not in self._keys or not is_kept):
            await asyncio.shield(self._fetching)
            is_kept = self._fetched_ms is not None and clock_ms - self._fetched_ms < self._kept_ms
        return self._keys.get(kid) if is_kept else None

    def _may_try(self, clock_ms: int) -> bool:
        return self._tried_ms is None or clock_ms - self._tried_ms >= self._pause_ms

    async def _refresh(self, fetch: FetchKeySet, clock_ms: int) -> None:
        try:
            self._keys = read_key_set(await fetch())
            self._fetched_ms = clock_ms
        except (DocumentUnavailable, ValueError) as error:
            log.warning("issuer's keys were not fetched error=%s", error)
        finally:
            self._fetching = None


def read_key_set(text: bytes) -> dict[str, _VerifyingKey]:
    """Return the keys of a key set that can verify tokens, by their ids. Other keys are omitted.

    Raises:
        ValueError: the text is not a key set, or the set has more than `KEYS_MAX` keys.
    """
    parsed = read_foreign_json(text)
    listed = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise ValueError(f"expected a key set of at most {KEYS_MAX} keys")
    found = {}
    for item in listed:
        key = _verifying_key(item)
        if key is not None:
            found[item["kid"]] = key
    return found


class AccessTokens:
    """Authenticates the callers of access tokens.

    Args:
        keys: the keys of the issuer.
        settings: the secret, the expected issuer and the expected audience. Without a secret and
            without a key set no token is accepted.
    """

    def __init__(self, keys: IssuerKeys, settings: Settings) -> None:
        self._keys = keys
        self._secret = settings.jwt_secret
        self._issuer = settings.jwt_issuer or None
        self._audience = settings.jwt_audience or None
        self._leeway_s = LEEWAY_S
        self._is_open = bool(settings.jwt_secret or settings.jwks_url)

    async def principal(self, token: bytes, clock_ms: int) -> Principal:
        """Verify a token, and return its caller.

        Args:
            token: the text of the token.
            clock_ms: the time of a monotonic clock, milliseconds.

        Raises:
            ServiceError: UNAUTHORIZED.
        """
        if not self._is_open:
            raise _refused("this deployment accepts no access tokens")
        try:
            # Only the header is decoded here. The token is decoded once, with its key.
            header = jwt.get_unverified_header(token.partition(b".")[0] + b"..")
            key = await self._key_of(header, clock_ms)
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm],
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway_s,
                options={
                    "require": ["exp", "sub", *(["iss"] if self._issuer else [])],
                    "verify_aud": self._audience is not None,
                },
            )
        except jwt.PyJWTError as error:
            raise _refused(f"the access token is not valid: {error}") from None
        return Principal(
            did=_subject(claims),
            key_id=JWT_KEY_ID,
            scopes=self._scopes(claims),
            expires_ms=min(int(claims["exp"]) * 1_000, TIME_MS_MAX),
        )

    async def _key_of(self, header: dict[str, Any], clock_ms: int) -> _VerifyingKey:
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm == HS256 and self._secret:
            return _VerifyingKey(HS256, self._secret)
        found = None
        if algorithm in (RS256, EDDSA) and isinstance(kid, str):
            found = await self._keys.find(kid, clock_ms)
        if found is None or found.algorithm != algorithm:
            raise jwt.InvalidKeyError(f"no key is known for its alg {str(algorithm)[:20]} and kid")
        return found

    def _scopes(self, claims: dict[str, Any]) -> frozenset[str]:
        """Return the scopes of a token. A token without `scope` has the default scopes of a key.

        `admin` counts only if the settings name the issuer. Otherwise every service that knows the
        secret could issue tokens of an administrator.
        """
        if "scope" not in claims:
            return frozenset(DEFAULT_SCOPES)
        listed = claims["scope"]
        if not isinstance(listed, str) or len(listed) > _SCOPES_CHARS_MAX:
            raise _refused(
                f"the access token's scope is not a text of at most {_SCOPES_CHARS_MAX} characters"
            )
        scopes = RIGHTS.intersection(listed.split())
        return scopes if self._issuer is not None else scopes - {ADMIN}


def _subject(claims: dict[str, Any]) -> str:
    did = claims["sub"]
    if not is_did(did):
        raise _refused("the access token's sub is not a DID")
    return str(did)


def _verifying_key(item: Any) -> _VerifyingKey | None:
    """Return a key of a key set with its algorithm; None for a key that may not verify tokens."""
    if not isinstance(item, dict) or not isinstance(item.get("kid"), str):
        return None
    if item.get("use", "sig") != "sig" or item.get("kty") not in ("RSA", "OKP"):
        return None  # An `oct` key is a shared secret; in a public key set everybody knows it.
    try:
        key = jwt.PyJWK(item, algorithm=RS256 if item["kty"] == "RSA" else EDDSA).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if isinstance(key, RSAPublicKey) and key.key_size >= _RSA_BITS_MIN:
        algorithm = RS256
    elif isinstance(key, Ed25519PublicKey):
        algorithm = EDDSA
    else:
        return None
    return _VerifyingKey(algorithm, key) if item.get("alg", algorithm) == algorithm else None


def _refused(detail: str) -> ServiceError:
    return ServiceError(ErrorCode.UNAUTHORIZED, detail)
