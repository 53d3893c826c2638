"""Who calls: an API key or an access token becomes a `Principal`, or the call is refused.

It proves identity only; what the principal may do is `core/trust/access.py`'s. Keys are looked up
by their SHA-256 and remembered for a second, so a revoked key ends within one.
Spec: Authentication 1; contract.md section 3.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import jwt

from core.errors import ErrorCode, ServiceError
from core.trust.access import DEFAULT_SCOPES, HEARTBEAT, Principal, is_scope
from core.trust.heartbeat_token import PREFIX, read_heartbeat_token

KEY_PREFIX = "cb_"
KEY_CACHE_MS = 1_000
# The key id of whoever calls with a heartbeat token ends in the token's revision.
HEARTBEAT_KEY_ID = "heartbeat:"

_CACHE_MAX = 10_000
_CREDENTIAL_BYTES_MAX = 8_192


@dataclass(frozen=True, slots=True)
class StoredKey:
    """An API key as the ledger knows it. `ends_ms`: when it expires, None for never."""

    principal: Principal
    ends_ms: int | None


FindKey = Callable[[bytes], Awaitable[StoredKey | None]]


def new_api_key() -> str:
    """Make an API key: 256 random bits, recognisable in a log by its prefix."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def key_hash(api_key: str) -> bytes:
    """Return what is stored of a key. A plain hash suffices: the key has 256 random bits."""
    return hashlib.sha256(api_key.encode()).digest()


class Authenticator:
    """Turns the headers of a request into its caller.

    Args:
        find_key: looks an API key up by its hash; None for an unknown or revoked one.
        jwt_secret: the HS256 secret of accepted access tokens, empty to accept none.
        deployment_key: 32 bytes, from which heartbeat tokens are derived.
    """

    def __init__(self, find_key: FindKey, jwt_secret: str, deployment_key: bytes) -> None:
        self._find_key = find_key
        self._jwt_secret = jwt_secret
        self._deployment_key = deployment_key
        self._known: dict[bytes, tuple[int, StoredKey | None]] = {}
        self._asked: dict[bytes, asyncio.Future[StoredKey | None]] = {}

    def __repr__(self) -> str:
        return f"<Authenticator known={len(self._known)}>"

    async def principal(self, headers: Mapping[bytes, bytes], now_ms: int) -> Principal | None:
        """Return the caller, None when the request carries no credential at all.

        Raises:
            ServiceError: UNAUTHORIZED; a credential was given and is not valid.
        """
        credential = headers.get(b"x-api-key")
        if credential is None:
            authorization = headers.get(b"authorization")
            if authorization is None:
                return None
            kind, _, credential = authorization.partition(b" ")
            credential = credential.strip()
            if kind.lower() != b"bearer":
                raise _refused("the Authorization header is not of the Bearer scheme")
            # An API key has no full stop in it, a signed token has two.
            if credential.count(b".") == 2:
                return self._from_token(credential)
        if not 0 < len(credential) <= _CREDENTIAL_BYTES_MAX:
            raise _refused("the API key is empty or too long")
        if credential.startswith(PREFIX.encode()):
            return self._from_heartbeat_token(credential)
        stored = await self._stored(hashlib.sha256(credential).digest(), now_ms)
        if stored is None:
            raise _refused("the API key is not known")
        if stored.ends_ms is not None and stored.ends_ms <= now_ms:
            raise _refused("the API key has expired")
        return stored.principal

    async def _stored(self, digest: bytes, now_ms: int) -> StoredKey | None:
        known = self._known.get(digest)
        if known is not None and 0 <= now_ms - known[0] < KEY_CACHE_MS:
            return known[1]
        asked = self._asked.get(digest)
        if asked is None:
            # One question for all that wait; a task, so that the first asker may leave.
            asked = asyncio.ensure_future(self._find_key(digest))
            self._asked[digest] = asked
            asked.add_done_callback(lambda _: self._asked.pop(digest, None))
        stored = await asyncio.shield(asked)
        if len(self._known) >= _CACHE_MAX:
            self._known.clear()
        self._known[digest] = (now_ms, stored)
        return stored

    def _from_heartbeat_token(self, token: bytes) -> Principal:
        found = read_heartbeat_token(self._deployment_key, token.decode("ascii", "replace"))
        if found is None:
            raise _refused("the heartbeat token is not valid")
        did, revision = found
        return Principal(did, f"{HEARTBEAT_KEY_ID}{revision}", frozenset({HEARTBEAT}))

    def _from_token(self, token: bytes) -> Principal:
        if not self._jwt_secret:
            raise _refused("this deployment accepts no access tokens")
        try:
            claims = jwt.decode(
                token,
                self._jwt_secret,
                algorithms=["HS256"],
                options={"require": ["exp", "sub"], "verify_aud": False},
            )
        except jwt.InvalidTokenError as error:
            raise _refused(f"the access token is not valid: {error}") from None
        scopes = claims.get("scope", " ".join(DEFAULT_SCOPES))
        if not isinstance(scopes, str) or not str(claims["sub"]).startswith("did:"):
            raise _refused("the access token names no DID as sub, or its scope is no text")
        return Principal(
            did=claims["sub"],
            key_id="jwt",
            scopes=frozenset(scope for scope in scopes.split() if is_scope(scope)),
        )


def _refused(detail: str) -> ServiceError:
    return ServiceError(ErrorCode.UNAUTHORIZED, detail)
