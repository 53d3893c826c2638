"""API keys: create, list, rotate and revoke them.

Only the hash of a key is stored. The secret is shown in the reply to the creation. A repeat of this
request with the same credential gets the same reply (decision idempotent-requests). A key that was
created with another key is derived from this parent key. A derived key has no scopes that its
parent lacks, expires no later than its parent, and ends with its parent. A rotation keeps the key's
id, its rights and its derived keys. Decision permissions-and-keys.
"""

from __future__ import annotations

from math import inf
from typing import Final

from msgspec import structs

from core.errors import ErrorCode, ServiceError
from core.json_text import write_json
from core.records.api.operators import (
    KeyCreated,
    KeyPage,
    KeyRequest,
    KeyRevoked,
    KeyRotated,
    KeyRotation,
    KeysQuery,
)
from core.timestamps import iso_ms
from core.trust.access import (
    ADMIN,
    DEFAULT_SCOPES,
    DID_KEY_ID,
    JWT_KEY_ID,
    RIGHTS,
    Principal,
    find_ungrantable_scopes,
    is_derived,
    is_scope,
)
from ledger.commands import OutcomeStatus
from ledger.features.keys import CreateKey, RevokeKey, RotateKey
from ledger.reads.reader import RowDict
from serve_app.callers.auth import key_hash, new_api_key
from serve_app.http.calls import Call, Json, Operations, invalid, not_found
from serve_app.http.lists import listed, page_of
from serve_app.operations.views import iso_time, key_record, shown

# The most live API keys of one owner, and the most levels of derived keys.
KEYS_PER_OWNER_MAX: Final = 1_000
KEY_DEPTH_MAX: Final = 8

SCOPES_MAX = 100
# Credentials that are not API keys. A key that is created with such a credential has no parent key.
_NOT_KEYS = (JWT_KEY_ID, DID_KEY_ID)

OPERATIONS = Operations("keys")


@OPERATIONS.add("POST", "/v1/keys", body=KeyRequest, reply=KeyCreated)
async def create(call: Call) -> Json:
    """Create an API key; its secret is shown once.

    An administrator can create a key for another owner.
    """
    body = call.given(KeyRequest)
    owner_did = body.owner_did or call.caller.did
    call.require(call.right, owner_did)
    name = body.name or ""
    api_key = new_api_key()
    key_id = call.services.new_id()
    scopes = _scopes(call, body)
    # The credential that the new key is derived from; None if the new key is independent.
    maker = call.caller if is_derived(call.caller, owner_did, scopes) else None
    parent_id = None if maker is None or maker.key_id in _NOT_KEYS else maker.key_id
    rate_class, rate_limits = _rates(call, body, maker)
    expires_ms = _expires_ms(call, body, maker)
    command = CreateKey(
        key_id=key_id,
        key_hash=key_hash(api_key),
        owner_did=owner_did,
        name=name,
        scopes=scopes,
        rate_class=rate_class,
        rate_limits_json=None if rate_limits is None else write_json(rate_limits).decode(),
        expires_ms=expires_ms,
        parent_id=parent_id,
        owner_keys_max=KEYS_PER_OWNER_MAX,
        depth_max=KEY_DEPTH_MAX,
    )
    outcome = await call.commit(command)
    if outcome.status is OutcomeStatus.REPEATED:
        # Another credential created the key, or the first call ended before its reply was stored.
        raise ServiceError(
            ErrorCode.CONFLICT,
            f"the key {outcome.result['id']} was created with this Idempotency-Key and its"
            " secret cannot be shown again: create another key with another Idempotency-Key",
        )
    others = {"id": key_id, "key": api_key, "scopes": list(scopes), "rate_limits": rate_limits}
    return shown(KeyCreated, structs.asdict(command), success=True, **others)


@OPERATIONS.add(
    "POST", "/v1/keys/{key_id}/rotate", body=KeyRotation, is_body_optional=True, reply=KeyRotated
)
async def rotate(call: Call) -> Json:
    """Rotate the secret of an API key; the new secret is shown once."""
    key_id = call.path_values["key_id"]
    row = await call.services.reader.api_key(key_id)
    if row is None or row["revoked_ms"] is not None or not call.may((row["owner_did"],)):
        raise not_found(f"the key {key_id}")
    _check_rotates(call, row)
    api_key = new_api_key()
    command = RotateKey(
        key_id=key_id,
        key_hash=key_hash(api_key),
        overlap_ms=call.given(KeyRotation).overlap_seconds * 1_000,
        owner_did=call.party_did,
    )
    outcome = await call.commit(command)
    if outcome.status is OutcomeStatus.REPEATED:
        raise ServiceError(
            ErrorCode.CONFLICT,
            f"the key {key_id} was rotated with this Idempotency-Key and its secret cannot be"
            " shown again: rotate it with another Idempotency-Key",
        )
    rotated = {**row, "previous_ends_ms": outcome.result["previous_ends_ms"]}
    return key_record(rotated, KeyRotated, success=True, key=api_key)


def _check_rotates(call: Call, row: RowDict) -> None:
    """Refuse a rotation whose caller would gain rights by the new secret.

    A key may be rotated with the key itself or by an administrator. It may also be rotated with an
    access token or a signature of its owner that has all scopes of the key and expires no earlier.
    The owner's other API keys may revoke the key but not rotate it. Otherwise the holder of such a
    key could use the new secret after that key has ended.

    Raises:
        ServiceError: FORBIDDEN.
    """
    caller = call.caller
    if caller.is_admin or caller.key_id == row["id"]:
        return
    beyond = find_ungrantable_scopes(caller, row["scopes"])
    is_longer = caller.expires_ms is not None and (row["expires_ms"] or inf) > caller.expires_ms
    if caller.key_id not in _NOT_KEYS or beyond or is_longer:
        raise ServiceError(
            ErrorCode.FORBIDDEN,
            f"the key {row['id']} can only be rotated by itself, by its owner's DID signature"
            " or access token with all of its scopes, or by an administrator",
        )


@OPERATIONS.add("GET", "/v1/keys", query=KeysQuery, reply=KeyPage)
async def list_keys(call: Call) -> Json:
    """List API keys."""
    query = call.given(KeysQuery)
    page = page_of(call, query)
    owner_did = call.party_did or query.owner_did
    rows = await call.services.reader.api_keys(
        owner_did=owner_did, after_id=page.after, **page.rows
    )
    return listed("keys", rows, page, lambda row: row["id"], form=key_record)


@OPERATIONS.add("DELETE", "/v1/keys/{key_id}", reply=KeyRevoked)
async def revoke(call: Call) -> Json:
    """Revoke an API key.

    The keys derived from it end too. Replicas refuse all of them within a second.
    """
    key_id = call.path_values["key_id"]
    outcome = await call.commit(RevokeKey(key_id=key_id, owner_did=call.party_did))
    ended = outcome.result["ended"]
    return {"success": True, "id": key_id, "keyId": key_id, "endedKeys": ended}


def _scopes(call: Call, body: KeyRequest) -> tuple[str, ...]:
    """Return the scopes of the new key.

    Without `scopes` in the body these are the default scopes that the caller may grant.

    Raises:
        ServiceError: INVALID_REQUEST; INSUFFICIENT_SCOPE: the caller may not grant a scope.
    """
    scopes = body.scopes
    if scopes is None:
        beyond = find_ungrantable_scopes(call.caller, DEFAULT_SCOPES)
        return tuple(scope for scope in DEFAULT_SCOPES if scope not in beyond)
    if len(scopes) > SCOPES_MAX:
        raise invalid("scopes", f"{len(scopes)} scopes", f"at most {SCOPES_MAX} scopes")
    for index, scope in enumerate(scopes):
        if not is_scope(scope):
            raise invalid(f"scopes[{index}]", scope[:100], f"one of {', '.join(sorted(RIGHTS))}")
    refused = find_ungrantable_scopes(call.caller, scopes)
    if refused:
        raise ServiceError(
            ErrorCode.INSUFFICIENT_SCOPE,
            f"the credential lacks {', '.join(refused)} and cannot grant it",
        )
    return tuple(dict.fromkeys(scopes))


def _rates(
    call: Call, body: KeyRequest, maker: Principal | None
) -> tuple[str, dict[str, int] | None]:
    """Return the rate class and the rate limits of the new key; None for the default limits.

    Only an administrator may set them. If the body sets no limits, a derived key gets the limits of
    the credential that it is derived from.

    Raises:
        ServiceError: INSUFFICIENT_SCOPE.
    """
    rate_class, limits = body.rate_class, body.rate_limits
    if (rate_class != "standard" or limits is not None) and not call.holds(ADMIN):
        raise ServiceError(
            ErrorCode.INSUFFICIENT_SCOPE, "only an administrator may set rateClass or rateLimits"
        )
    if limits is None:
        return rate_class, dict(maker.rate_limits) or None if maker is not None else None
    own = {"read": limits.read, "write": limits.write, "bulk": limits.bulk}
    return rate_class, {name: limit for name, limit in own.items() if limit is not None}


def _expires_ms(call: Call, body: KeyRequest, maker: Principal | None) -> int | None:
    """Return the expiry of the new key in Unix milliseconds; None for never.

    A derived key expires no later than the credential that it is derived from.

    Raises:
        ServiceError: INVALID_REQUEST.
    """
    latest_ms = None if maker is None else maker.expires_ms
    expires_ms = body.expires_at
    if expires_ms is None:
        return latest_ms
    if expires_ms <= call.services.now_ms():
        raise invalid("expiresAt", iso_ms(expires_ms), "a time in the future")
    if latest_ms is not None and expires_ms > latest_ms:
        expected = f"at most {iso_time(latest_ms)}, when the credential that makes the key expires"
        raise invalid("expiresAt", iso_ms(expires_ms), expected)
    return expires_ms
