"""API keys: make, list, revoke.

A key is shown once, at its making, and to a repeat of that very request (docs/decisions/0014);
stored is its hash. A key made with another can do no more, lives no longer, and ends with it.
contract.md section 3 (Keys); decision 0107.
"""

from __future__ import annotations

from typing import Any

import orjson

from core.errors import ErrorCode, ServiceError
from core.records.bounds import NAME_CHARS_MAX
from core.trust.access import (
    ADMIN,
    DEFAULT_SCOPES,
    JWT_KEY_ID,
    RIGHTS,
    Principal,
    find_ungrantable_scopes,
    is_derived,
    is_scope,
)
from ledger.commands import OutcomeStatus
from ledger.keys.key_commands import CreateKey, RevokeKey
from serve_app.auth import key_hash, new_api_key
from serve_app.calls import (
    Call,
    Operation,
    Repeats,
    Reply,
    invalid,
    kind_of,
    not_found,
    text_member,
)
from serve_app.fields import got_of, refuse_unknown, time_ms_of
from serve_app.limits import UNLIMITED, RateClass
from serve_app.lists import listed, page_of
from serve_app.views import iso_time, key_record
from serve_app.whose import did_of

KEY_ID_CHARS_MAX = 128
SCOPES_MAX = 100
RATE_MAX = 1_000_000
_RATE_NAMES = ("read", "write", "bulk")
_MEMBERS = ("ownerDid", "name", "scopes", "rateClass", "rateLimits", "expiresAt")


async def create(call: Call) -> Reply:
    """Make a key for the caller, or, by an administrator, for anybody."""
    body = call.object_body()
    refuse_unknown(body, _MEMBERS)
    owner_did = did_of("ownerDid", body.get("ownerDid", call.caller.did))
    call.require(call.right, owner_did)
    name = text_member({"name": body.get("name") or ""}, "name", most=NAME_CHARS_MAX)
    api_key = new_api_key()
    key_id = call.services.new_id()
    scopes = _scopes(call, body)
    # What the new key stands on, None when it stands by itself.
    maker = call.caller if is_derived(call.caller, owner_did, scopes) else None
    parent_id = None if maker is None or maker.key_id == JWT_KEY_ID else maker.key_id
    rate_class, rate_limits = _rates(call, body, maker)
    expires_ms = _expires_ms(call, body, maker)
    command = CreateKey(
        key=call.command_key(f"key:{key_id}"),
        actor_did=call.caller.did,
        key_id=key_id,
        key_hash=key_hash(api_key),
        owner_did=owner_did,
        name=name,
        scopes=scopes,
        rate_class=rate_class,
        rate_limits_json=None if rate_limits is None else orjson.dumps(rate_limits).decode(),
        expires_ms=expires_ms,
        parent_id=parent_id,
        owner_keys_max=call.services.settings.keys_per_owner_max,
        depth_max=call.services.settings.key_depth_max,
    )
    outcome = await call.services.to_the_end(call.services.gateway.commit(command))
    if outcome.status is OutcomeStatus.REPEATED:
        # Made by a call that ended before its reply was kept: nobody has its secret any more.
        raise ServiceError(
            ErrorCode.CONFLICT,
            f"the key {outcome.result['id']} was made under this Idempotency-Key and its secret is"
            " lost; revoke it, and make another with another Idempotency-Key",
        )
    return Reply(
        {
            "success": True,
            "key": api_key,
            "id": key_id,
            "keyId": key_id,
            "ownerDid": owner_did,
            "name": name,
            "scopes": list(command.scopes),
            "rateClass": rate_class,
            "rateLimits": rate_limits,
            "expiresAt": iso_time(expires_ms),
            "parentId": parent_id,
        },
        headers=((b"cache-control", b"no-store"),),
    )


async def list_keys(call: Call) -> Reply:
    """List the caller's keys, never their secrets; an administrator sees all of them."""
    page = page_of(call)
    owner_did = call.party_did or call.query.get("ownerDid")
    rows = await call.services.reader.api_keys(
        owner_did=owner_did, limit=page.limit + 1, offset=page.offset, after_id=page.after
    )
    shown = [key_record(row) for row in rows]
    return Reply(listed("keys", shown, page, lambda row: row["id"]))


async def revoke(call: Call) -> Reply:
    """End a key and all made with it; within a second they open nothing any more."""
    key_id = call.path_values["key_id"]
    if len(key_id) > KEY_ID_CHARS_MAX:
        raise not_found("the key")
    command = RevokeKey(
        key=f"key-end:{call.services.new_id()}",
        actor_did=call.caller.did,
        key_id=key_id,
        owner_did=call.party_did,
    )
    outcome = await call.services.to_the_end(call.services.gateway.commit(command))
    ended = outcome.result["ended"]
    return Reply({"success": True, "id": key_id, "keyId": key_id, "endedKeys": ended})


def _scopes(call: Call, body: dict[str, Any]) -> tuple[str, ...]:
    """Return the scopes of the new key; without any named, the default ones the caller has."""
    scopes = body.get("scopes")
    if scopes is None:
        beyond = find_ungrantable_scopes(call.caller, DEFAULT_SCOPES)
        if beyond:
            return tuple(sorted(call.caller.scopes))
        return DEFAULT_SCOPES
    if not isinstance(scopes, list) or len(scopes) > SCOPES_MAX:
        raise invalid("scopes", kind_of(scopes), f"an array of at most {SCOPES_MAX} scopes")
    for index, scope in enumerate(scopes):
        if not isinstance(scope, str) or not is_scope(scope):
            raise invalid(f"scopes[{index}]", got_of(scope), f"one of {', '.join(sorted(RIGHTS))}")
    refused = find_ungrantable_scopes(call.caller, scopes)
    if refused:
        raise ServiceError(
            ErrorCode.INSUFFICIENT_SCOPE,
            f"the credential lacks {', '.join(refused)} and cannot hand it on",
        )
    return tuple(dict.fromkeys(scopes))


def _rates(
    call: Call, body: dict[str, Any], maker: Principal | None
) -> tuple[str, dict[str, int] | None]:
    """Return the new key's rate class and its own limits; only an administrator may set them.

    A key that stands on another has that one's limits unless an administrator sets its own.
    """
    rate_class = body.get("rateClass", "standard")
    limits = body.get("rateLimits")
    if rate_class not in ("standard", UNLIMITED):
        raise invalid("rateClass", got_of(rate_class), f"standard or {UNLIMITED}")
    if (rate_class != "standard" or limits is not None) and not call.holds(ADMIN):
        raise ServiceError(
            ErrorCode.INSUFFICIENT_SCOPE, "only an administrator sets rateClass or rateLimits"
        )
    if limits is None:
        return rate_class, dict(maker.rate_limits) or None if maker is not None else None
    if not isinstance(limits, dict):
        raise invalid("rateLimits", kind_of(limits), "an object")
    for name, limit in limits.items():
        is_whole = isinstance(limit, int) and not isinstance(limit, bool)
        if name not in _RATE_NAMES or not is_whole or not 0 < limit <= RATE_MAX:
            expected = f"calls a minute, 1 to {RATE_MAX}; of {', '.join(_RATE_NAMES)}"
            raise invalid(f"rateLimits.{name[:100]}", str(limit)[:100], expected)
    return rate_class, limits


def _expires_ms(call: Call, body: dict[str, Any], maker: Principal | None) -> int | None:
    """Return when the new key expires: not after the credential that it stands on."""
    latest_ms = None if maker is None else maker.expires_ms
    expires_at = body.get("expiresAt")
    if expires_at is None:
        return latest_ms
    expires_ms = time_ms_of("expiresAt", expires_at)
    if expires_ms <= call.services.now_ms():
        raise invalid("expiresAt", str(expires_at), "a time to come")
    if latest_ms is not None and expires_ms > latest_ms:
        expected = f"at most {iso_time(latest_ms)}, when the credential that makes the key expires"
        raise invalid("expiresAt", str(expires_at), expected)
    return expires_ms


OPERATIONS = (
    Operation(
        method="POST",
        path="/v1/keys",
        handler=create,
        summary="Make an API key; it is shown this once",
        scope="keys:write",
        rate=RateClass.WRITE,
        tag="keys",
        request="KeyRequest",
        reply="KeyCreated",
        errors=(ErrorCode.FORBIDDEN, ErrorCode.CONFLICT),
        repeats=Repeats.BY_REPLY,
    ),
    Operation(
        method="GET",
        path="/v1/keys",
        handler=list_keys,
        summary="List API keys",
        scope="keys:read",
        rate=RateClass.READ,
        tag="keys",
        reply="KeyList",
        parameters=("OwnerDid", "Limit", "Offset", "Cursor"),
        errors=(ErrorCode.INVALID_REQUEST,),
    ),
    Operation(
        method="DELETE",
        path="/v1/keys/{key_id}",
        handler=revoke,
        summary="Revoke an API key",
        scope="keys:write",
        rate=RateClass.WRITE,
        tag="keys",
        reply="KeyRevoked",
        parameters=("KeyId",),
        errors=(ErrorCode.NOT_FOUND,),
    ),
)
