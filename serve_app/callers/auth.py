"""Who calls: an API key or an access token becomes a `Principal`, or the call is refused.

It proves identity only; what the principal may do is `core/trust/access.py`'s. Keys are looked up
by their SHA-256. Theory of operation: a key that was found is remembered and asked for again after
a second, so a revoked key ends within one; only valid keys are remembered so, whatever else is
tried. Unknown keys are remembered apart, for a second. Look-ups travel in batches, those of
remembered keys apart from all others. Each address has a budget of unknown keys; beyond it, its
keys are looked up in one paused batch after the other, a few of each address in each: so a flood
costs a few queries a second in all, and a right key from the same address still gets through.
Durations are of a monotonic clock, ends of keys of the wall clock.
Spec: Authentication 1; contract.md section 3; decision 0102.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import jwt

from actors.transport.channel import Channel
from core.errors import ErrorCode, ServiceError
from core.records.bounds import TIME_MS_MAX, is_did
from core.settings import Settings
from core.trust.access import (
    DEFAULT_SCOPES,
    HEARTBEAT,
    JWT_KEY_ID,
    Principal,
    agent_holder,
    is_scope,
)
from core.trust.heartbeat_token import PREFIX, read_heartbeat_token
from serve_app.callers.shares import Shares
from serve_app.callers.windows import AddressWindows

KEY_PREFIX = "cb_"
KEY_CACHE_MS = 1_000
# The key id of a caller with a heartbeat token ends in the token's revision.
HEARTBEAT_KEY_ID = "heartbeat:"

_CREDENTIAL_BYTES_MAX = 8_192
_LOOKUP_BATCH = 200
_LOOKUPS_WAITING_MAX = 2_000
_PAUSED_RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True)
class StoredKey:
    """An API key as the ledger knows it. `ends_ms`: when it expires, None for never."""

    principal: Principal
    ends_ms: int | None


@dataclass(frozen=True, slots=True)
class Unproven:
    """A key that must be looked up. `did`: whose it was when it was looked up last, or None."""

    digest: bytes
    did: str | None


# SHA-256 hashes of keys -> one answer each, None for an unknown or revoked one.
FindKeys = Callable[[list[bytes]], Awaitable[Sequence[StoredKey | None]]]


def new_api_key() -> str:
    """Make an API key: 256 random bits, recognisable in a log by its prefix."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def key_hash(api_key: str) -> bytes:
    """Return what is stored of a key. A plain hash suffices: the key has 256 random bits."""
    return hashlib.sha256(api_key.encode()).digest()


class Authenticator:
    """Turns the headers of a request into its caller.

    Args:
        find_keys: looks API keys up.
        settings: the bounds, and the secrets of access tokens and heartbeat tokens; an empty one
            accepts none.
    """

    def __init__(self, find_keys: FindKeys, settings: Settings) -> None:
        self._jwt_secret = settings.jwt_secret
        self._deployment_key = bytes.fromhex(settings.deployment_key)
        self._keys_max = settings.keys_cached_max
        # In the order of use, the oldest first.
        self._known: dict[bytes, tuple[int, StoredKey]] = {}
        self._unknown: dict[bytes, int] = {}
        self._asked: dict[bytes, asyncio.Future[StoredKey | None]] = {}
        self._wrong = AddressWindows(settings.wrong_keys_rate, settings.addresses_max)
        self._pause_s = settings.wrong_keys_pause_ms / 1_000
        self._find_keys = find_keys
        self._known_lookups = _lookups("remembered keys", find_keys)
        self._new_lookups = _lookups("new keys", find_keys)
        self._paused_lookups = _lookups("keys of busy addresses", self._find_after_pause)
        self._paused = Shares(_LOOKUP_BATCH, settings.share_of_free)

    def __repr__(self) -> str:
        return f"<Authenticator known={len(self._known)} unknown={len(self._unknown)}>"

    async def principal(
        self, headers: Mapping[bytes, bytes], address: str, now_ms: int, clock_ms: int
    ) -> Principal | None:
        """Return the caller, None when the request carries no credential at all.

        Args:
            address: where the request comes from.
            now_ms: Unix time, milliseconds.
            clock_ms: a monotonic clock, milliseconds.

        Raises:
            ServiceError: UNAUTHORIZED; a credential was given and is not valid. RATE_LIMITED: too
                many unknown keys came from this address.
        """
        found = self.recognise(headers, now_ms, clock_ms)
        if isinstance(found, Unproven):
            return await self.look_up(found, address, now_ms, clock_ms)
        return found

    def recognise(
        self, headers: Mapping[bytes, bytes], now_ms: int, clock_ms: int
    ) -> Principal | Unproven | None:
        """Return the caller as far as it is known without asking the database.

        Args and errors are those of `principal`.
        """
        credential = headers.get(b"x-api-key")
        if credential is None:
            authorization = headers.get(b"authorization")
            if authorization is None:
                return None
            kind, _, credential = authorization.partition(b" ")
            credential = credential.strip(b" \t")  # as HAProxy does (spent_callers.py)
            if kind.lower() != b"bearer":
                raise _refused("the Authorization header is not of the Bearer scheme")
            # An API key has no full stop in it, a signed token has two.
            if credential.count(b".") == 2:
                return self._from_token(credential)
        if not 0 < len(credential) <= _CREDENTIAL_BYTES_MAX:
            raise _refused("the API key is empty or too long")
        if credential.startswith(PREFIX.encode()):
            return self._from_heartbeat_token(credential)
        digest = hashlib.sha256(credential).digest()
        known = self._known.pop(digest, None)
        if known is None:
            return Unproven(digest, None)
        self._known[digest] = known
        looked_up_ms, stored = known
        if clock_ms - looked_up_ms < KEY_CACHE_MS:
            return _living(stored, now_ms)
        return Unproven(digest, stored.principal.did)

    async def look_up(self, key: Unproven, address: str, now_ms: int, clock_ms: int) -> Principal:
        """Ask the database for a key.

        Args and errors are those of `principal`.
        """
        digest = key.digest
        if key.did is not None:
            stored = await self._found(digest, self._known_lookups)
        else:
            unknown_ms = self._unknown.get(digest)
            if unknown_ms is not None and clock_ms - unknown_ms < KEY_CACHE_MS:
                raise _refused("the API key is not known")
            if self._wrong.take(address, clock_ms).is_allowed:
                stored = await self._found(digest, self._new_lookups)
            else:
                stored = await self._found_after_pause(digest, address)
            if stored is not None:
                self._wrong.give_back(address, clock_ms)
        self._remember(digest, stored, clock_ms)
        if stored is None:
            raise _refused("the API key is not known")
        return _living(stored, now_ms)

    async def _found_after_pause(self, digest: bytes, address: str) -> StoredKey | None:
        if not self._paused.take(address):
            raise ServiceError(
                ErrorCode.RATE_LIMITED,
                f"too many unknown API keys come from {address}",
                retry_after_s=_PAUSED_RETRY_AFTER_S,
            )
        try:
            return await self._found(digest, self._paused_lookups)
        finally:
            self._paused.give_back(address)

    async def _find_after_pause(self, digests: list[bytes]) -> Sequence[StoredKey | None]:
        await asyncio.sleep(self._pause_s)
        return await self._find_keys(digests)

    async def _found(
        self, digest: bytes, lookups: Channel[bytes, StoredKey | None]
    ) -> StoredKey | None:
        asked = self._asked.get(digest)
        if asked is None:
            # One question for all that wait; a task, so that the first asker may leave.
            asked = asyncio.ensure_future(lookups.request(digest))
            self._asked[digest] = asked
            asked.add_done_callback(lambda _: self._asked.pop(digest, None))
        return await asyncio.shield(asked)

    def _remember(self, digest: bytes, stored: StoredKey | None, clock_ms: int) -> None:
        if stored is None:
            self._known.pop(digest, None)
            self._unknown[digest] = clock_ms
            if len(self._unknown) > self._keys_max:
                del self._unknown[next(iter(self._unknown))]
        else:
            self._known[digest] = (clock_ms, stored)
            if len(self._known) > self._keys_max:
                del self._known[next(iter(self._known))]

    def _from_heartbeat_token(self, token: bytes) -> Principal:
        found = read_heartbeat_token(self._deployment_key, token.decode("ascii", "replace"))
        if found is None:
            raise _refused("the heartbeat token is not valid")
        did, revision = found
        key_id = f"{HEARTBEAT_KEY_ID}{revision}"
        return Principal(agent_holder(did), key_id, frozenset({HEARTBEAT}))

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
        if not isinstance(scopes, str) or not is_did(claims["sub"]):
            raise _refused("the access token names no DID as sub, or its scope is no text")
        return Principal(
            did=claims["sub"],
            key_id=JWT_KEY_ID,
            scopes=frozenset(scope for scope in scopes.split() if is_scope(scope)),
            expires_ms=min(int(claims["exp"]) * 1_000, TIME_MS_MAX),
        )


def _lookups(name: str, find_keys: FindKeys) -> Channel[bytes, StoredKey | None]:
    return Channel(name, find_keys, capacity=_LOOKUPS_WAITING_MAX, batch_size=_LOOKUP_BATCH)


def _living(stored: StoredKey, now_ms: int) -> Principal:
    if stored.ends_ms is not None and stored.ends_ms <= now_ms:
        raise _refused("the API key has expired")
    return stored.principal


def _refused(detail: str) -> ServiceError:
    return ServiceError(ErrorCode.UNAUTHORIZED, detail)
