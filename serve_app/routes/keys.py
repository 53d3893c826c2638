"""API keys: make, list, revoke.

A key is shown once, at its making, and to a repeat of that very request (docs/decisions/0014);
stored is its hash. Nobody makes a key that may do more than the
one they use. contract.md section 3 (Keys).
"""

from __future__ import annotations

from typing import Any

import orjson

from core.errors import ErrorCode, ServiceError
from core.trust.access import DEFAULT_SCOPES, Need, is_scope, ungrantable
from ledger.commands import CreateKey, OutcomeStatus, RevokeKey
from serve_app.auth import key_hash, new_api_key
from serve_app.calls import Call, Operation, Repeats, Reply, invalid, kind_of
from serve_app.limits import UNLIMITED, RateClass
from serve_app.lists import listed, page_of, parse_time
from serve_app.views import iso_time, key_record

NAME_MAX = 200
SCOPES_MAX = 100
RATE_MAX = 1_000_000
_RATE_NAMES = ("read", "write", "bulk")


async def create(call: Call) -> Reply:
    """Make a key for the caller, or, by an administrator, for anybody."""
    body = call.object_body()
    owner_did = body.get("ownerDid", call.caller.did)
    if not isinstance(owner_did, str) or not owner_did.startswith("did:") or len(owner_did) > 255:
        raise invalid("ownerDid", str(owner_did)[:100], "a DID")
    call.require(Need("keys:write", owner_did))
    name = body.get("name") or ""
    if not isinstance(name, str) or len(name) > NAME_MAX:
        raise invalid("name", kind_of(name), f"at most {NAME_MAX} characters")
    api_key = new_api_key()
    key_id = call.services.new_id()
    rate_class, rate_limits = _rates(call, body)
    expires_ms = _expires_ms(call, body)
    command = CreateKey(
        key=call.command_key(f"key:{key_id}"),
        actor_did=call.caller.did,
        key_id=key_id,
        key_hash=key_hash(api_key),
        owner_did=owner_did,
        name=name,
        scopes=_scopes(call, body),
        rate_class=rate_class,
        rate_limits_json=None if rate_limits is None else orjson.dumps(rate_limits).decode(),
        expires_ms=expires_ms,
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
        },
        headers=((b"cache-control", b"no-store"),),
    )


async def list_keys(call: Call) -> Reply:
    """List the caller's keys, never their secrets; an administrator sees all of them."""
    page = page_of(call)
    owner_did = call.query.get("ownerDid") if call.caller.is_admin else call.caller.did
    rows = await call.services.reader.api_keys(
        owner_did=owner_did, limit=page.limit + 1, offset=page.offset, after_id=page.after
    )
    shown = [key_record(row) for row in rows]
    return Reply(listed("keys", shown, page, lambda row: row["id"]))


async def revoke(call: Call) -> Reply:
    """End a key; within a second it opens nothing any more."""
    key_id = call.path_values["key_id"]
    command = RevokeKey(
        key=f"key-end:{call.services.new_id()}",
        actor_did=call.caller.did,
        key_id=key_id,
        owner_did=None if call.caller.is_admin else call.caller.did,
    )
    await call.services.to_the_end(call.services.gateway.commit(command))
    return Reply({"success": True, "id": key_id, "keyId": key_id})


def _scopes(call: Call, body: dict[str, Any]) -> tuple[str, ...]:
    """Return the scopes of the new key; without any named, the default ones the caller has."""
    scopes = body.get("scopes")
    if scopes is None:
        beyond = ungrantable(call.caller, DEFAULT_SCOPES)
        if beyond:
            return tuple(sorted(call.caller.scopes))
        return DEFAULT_SCOPES
    if not isinstance(scopes, list) or len(scopes) > SCOPES_MAX:
        raise invalid("scopes", kind_of(scopes), f"an array of at most {SCOPES_MAX} scopes")
    for index, scope in enumerate(scopes):
        if not isinstance(scope, str) or not is_scope(scope):
            raise invalid(f"scopes[{index}]", str(scope), "`resource:read`, `resource:write`, …")
    refused = ungrantable(call.caller, scopes)
    if refused:
        raise ServiceError(
            ErrorCode.INSUFFICIENT_SCOPE,
            f"the credential lacks {', '.join(refused)} and cannot hand it on",
        )
    return tuple(dict.fromkeys(scopes))


def _rates(call: Call, body: dict[str, Any]) -> tuple[str, dict[str, int] | None]:
    """Return the new key's rate class and its own limits; only an administrator may set them."""
    rate_class = body.get("rateClass", "standard")
    limits = body.get("rateLimits")
    if rate_class not in ("standard", UNLIMITED):
        raise invalid("rateClass", str(rate_class), f"standard or {UNLIMITED}")
    if (rate_class != "standard" or limits is not None) and not call.caller.is_admin:
        raise ServiceError(
            ErrorCode.INSUFFICIENT_SCOPE, "only an administrator sets rateClass or rateLimits"
        )
    if limits is None:
        return rate_class, None
    if not isinstance(limits, dict):
        raise invalid("rateLimits", kind_of(limits), "an object")
    for name, limit in limits.items():
        is_whole = isinstance(limit, int) and not isinstance(limit, bool)
        if name not in _RATE_NAMES or not is_whole or not 0 < limit <= RATE_MAX:
            raise invalid(f"rateLimits.{name}", str(limit), f"calls a minute, 1 to {RATE_MAX}")
    return rate_class, limits


def _expires_ms(call: Call, body: dict[str, Any]) -> int | None:
    expires_at = body.get("expiresAt")
    if expires_at is None:
        return None
    expires_ms = int(parse_time("expiresAt", expires_at).timestamp() * 1_000)
    if expires_ms <= call.services.now_ms():
        raise invalid("expiresAt", str(expires_at), "a time to come")
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
