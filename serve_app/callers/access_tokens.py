"""Access tokens (JWT): by a shared secret, or by the keys of an issuer, which rotate.

Each key has one algorithm, and a token is verified by the algorithm of its key, never by the one
that it names alone: HS256 is the secret's, RS256 and EdDSA are those of published keys.
Theory of operation: the issuer's key set is fetched when the first token asks for one of its keys,
and again every `jwks_refresh_s`, beside the requests. A token with an unknown `kid` has it fetched
at once, at most every `jwks_pause_s`, so made-up ones cost nothing. While the issuer is away the
keys of before count for `jwks_kept_s`. Knows no rights but those that a token lists.
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

# The age at which the issuer's keys are fetched again, the least time from one fetch to the next,
# and how long keys are valid that cannot be fetched again.
REFRESH_S: Final = 300
PAUSE_S: Final = 30
KEPT_S: Final = 3_600
# By how much the clocks of issuer and service may differ.
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
    """A key with the one algorithm that it verifies."""

    algorithm: str
    key: Any


class IssuerKeys:
    """The published keys of the issuer, by their ids.

    Args:
        fetch: the key set's text; None without an issuer that publishes one.
        refresh_s: age at which the keys are fetched again.
        pause_s: least time from one fetch to the next.
        kept_s: how long keys are valid that cannot be fetched again.
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
        """Return the key with this id, None when the issuer has none.

        Args:
            clock_ms: a monotonic clock, milliseconds.
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
    """Return the keys of a set that verify tokens here, by their ids; others are left out.

    Raises:
        ValueError: it is no key set, or has more than `KEYS_MAX` keys.
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
    """Turns access tokens into their callers.

    Args:
        keys: the issuer's.
        settings: the secret, and what tokens must say; without a secret and keys none is accepted.
    """

    def __init__(self, keys: IssuerKeys, settings: Settings) -> None:
        self._keys = keys
        self._secret = settings.jwt_secret
        self._issuer = settings.jwt_issuer or None
        self._audience = settings.jwt_audience or None
        self._leeway_s = LEEWAY_S
        self._is_open = bool(settings.jwt_secret or settings.jwks_url)

    async def principal(self, token: bytes, clock_ms: int) -> Principal:
        """Return the caller whom a token names.

        Args:
            clock_ms: a monotonic clock, milliseconds.

        Raises:
            ServiceError: UNAUTHORIZED.
        """
        if not self._is_open:
            raise _refused("this deployment accepts no access tokens")
        try:
            # Of the header alone: the whole token is read once, with its key.
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
        """Return the rights that a token lists, without `scope` a new key's.

        `admin` counts only where the issuer is named by a setting: any other holder of the secret
        could sign for everything.
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
    """Return a key of a set with its algorithm; None for one that verifies no tokens here."""
    if not isinstance(item, dict) or not isinstance(item.get("kid"), str):
        return None
    if item.get("use", "sig") != "sig" or item.get("kty") not in ("RSA", "OKP"):
        return None  # an `oct` key in a public set would be everybody's secret
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
