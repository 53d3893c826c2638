"""Idempotency keys: a repeated POST gets the first reply, and its work is not done again.

An operation declares how it treats an idempotency key (`Repeats`). Most operations that change
something store their reply under the key (`once`). The key is reserved before the handler runs. So
a different request under the same key is refused at once. The ledger keys of the handler's commands
are derived from the idempotency key. So a repeat after a crash continues the work, and no command
is applied twice.

Publish and deposit store no reply. Each sends one command, which carries the idempotency key, and
the reply is made from the command's stored result. Decision idempotent-requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from core.canonical import canonical
from core.errors import ErrorCode, ServiceError
from core.json_text import read_foreign_json, read_json, write_json
from core.records.bounds import REPEAT_KEY_CHARS_MAX, TIME_MS_MAX
from core.trust.access import Principal
from core.trust.deployment_keys import NONCE_BYTES, DeploymentKeys, KeyPurpose, seal, unseal
from ledger.replies import OUTCOME_UNKNOWN, ReplyStore
from serve_app.http.calls import REPLAYED, Call, RepeatKey, Repeats, Reply, invalid
from serve_app.http.errors import STATUS
from serve_app.http.worker_thread import IN_LOOP_BYTES_MAX, in_thread

# How long a repeat waits for the reply to the first request. The replica of the first request may
# have crashed, so the wait is bounded.
FIRST_REPLY_WAIT_S: Final = 10.0
_PAUSE_S: Final = 0.02
_PAUSE_S_MAX: Final = 0.25


async def repeat_key(call: Call) -> RepeatKey | None:
    """Return the caller's idempotency key with the hash of the request; None without the header.

    The hash covers method, path and body, so the same key on another path is a different request. A
    JSON body is hashed in its canonical form: spacing and the order of members do not matter.

    Raises:
        ServiceError: INVALID_REQUEST: the header is empty, too long or not printable ASCII.
    """
    given = call.headers.get(b"idempotency-key")
    if given is None:
        return None
    text = given.decode("latin-1")
    if not 0 < len(text) <= REPEAT_KEY_CHARS_MAX or not text.isascii() or not text.isprintable():
        expected = f"1 to {REPEAT_KEY_CHARS_MAX} printable ASCII characters"
        raise invalid("Idempotency-Key", f"{len(given)} bytes", expected)
    request_hash = await in_thread(call.account, len(call.body), partial(_request_hash, call))
    return RepeatKey(text, request_hash)


def _request_hash(call: Call) -> bytes:
    path = unquote_to_bytes(call.raw_path)
    digest = hashlib.sha256(call.method.encode() + b" " + path + b"\n")
    digest.update(body_form(call))
    return digest.digest()


def body_form(call: Call) -> bytes:
    """Return the canonical form of a call's JSON body. An absent body counts as an empty object.

    The received bytes are returned if the body has no canonical form. They are also returned for a
    large body that only the handler parses: a bulk body, or an agent's result.
    """
    value = call.json
    try:
        if value is None and 0 < len(call.body) <= IN_LOOP_BYTES_MAX:
            value = read_foreign_json(call.body)
        if value is None and call.body:
            return call.body
        return canonical({} if value is None else value)
    except ValueError:
        return call.body


async def once(
    call: Call,
    principal: str,
    work: Callable[[Call], Awaitable[Reply]],
    *,
    maker: Principal | None = None,
) -> Reply:
    """Do the work of a request, or return the stored reply to the first request with this key.

    1. Reserve the key, or read the reply that is stored under it. A stored reply is returned only
       to the credential of the first request. For another credential of the same caller, the work
       runs again, as after a crash: it checks the rights of this other credential, and its commands
       only return their stored results. These contain no secret, so the new reply contains none.
       With `BY_REPLY_ALONE` no command would detect the repeat, so the request is refused instead.
    2. Do the work.
    3. After a refusal, release the key, because the request changed nothing. After a failure with
       an unknown outcome, mark the key, so that a repeat does the work again.
    4. Store the reply.

    The steps continue when the client disconnects, because the client will repeat the request.

    Args:
        call: the request.
        principal: the namespace of the key: usually the caller's DID.
        work: does the work. The keys of its commands must come from `Call.command_key`.
        maker: the caller, whose credential is stored with the reply; None when `principal` already
            identifies a credential.

    Raises:
        ServiceError: KEY_REUSED, LEDGER_UNAVAILABLE, or a refusal of the work.
    """
    if call.repeat_key is None:
        return await work(call)
    return await call.services.to_the_end(_once(call, call.repeat_key, principal, work, maker))


async def _once(
    call: Call,
    key: RepeatKey,
    principal: str,
    work: Callable[[Call], Awaitable[Reply]],
    maker: Principal | None,
) -> Reply:
    replies = call.services.replies
    keys = call.services.settings.deployment_keys
    first = await _first_reply(replies, principal, key)  # 1
    if first is not None:
        return await _repeated(call, _opened(first, keys), work, maker)
    try:
        reply = await work(call)  # 2
    except Exception as error:
        if isinstance(error, ServiceError) and STATUS[error.code] < 500:  # 3
            await replies.drop(principal, key.text)
        else:
            # If the mark cannot be stored, a repeat first waits `FIRST_REPLY_WAIT_S` for a reply.
            with suppress(ServiceError):
                await replies.keep(principal, key.text, key.request_hash, OUTCOME_UNKNOWN)
        raise
    if reply.is_refusal:
        await replies.drop(principal, key.text)
        return reply
    kept = _sealed(reply, maker, keys)
    await replies.keep(principal, key.text, key.request_hash, kept)  # 4
    return reply


async def _first_reply(replies: ReplyStore, principal: str, key: RepeatKey) -> bytes | None:
    """Return the reply that is stored under a key; None if this request must do the work.

    While another request with this key is in progress, wait for its reply, at most
    `FIRST_REPLY_WAIT_S`. After this time, return None.

    Raises:
        ServiceError: KEY_REUSED or LEDGER_UNAVAILABLE.
    """
    loop = asyncio.get_running_loop()
    deadline, pause_s = loop.time() + FIRST_REPLY_WAIT_S, _PAUSE_S
    while True:
        found = await replies.open(principal, key.text, key.request_hash)
        if found.request_hash != key.request_hash:
            raise ServiceError(
                ErrorCode.KEY_REUSED, "the Idempotency-Key was used before for a different request"
            )
        if found.reply:
            return found.reply
        if found.is_new or found.reply == OUTCOME_UNKNOWN or loop.time() > deadline:
            return None
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_S_MAX)


async def _repeated(
    call: Call, kept: _Kept, work: Callable[[Call], Awaitable[Reply]], maker: Principal | None
) -> Reply:
    is_for_another = not kept.is_for(maker)
    if is_for_another and call.repeats is Repeats.BY_REPLY_ALONE:
        detail = "the Idempotency-Key was used before with another credential"
        raise ServiceError(ErrorCode.KEY_REUSED, detail)
    reply = await work(call) if is_for_another else kept.reply
    fresh = [header for header in reply.headers if header != REPLAYED]
    return replace(reply, headers=(*fresh, REPLAYED))


@dataclass(frozen=True, slots=True)
class _Kept:
    """A stored reply, and the credential of the request that it answered.

    `credential`: the id, the scopes and the expiry of the credential; None without one. All access
    tokens of a caller have the same id; a renewed token has the same scopes and expires later.
    """

    reply: Reply
    credential: dict[str, Any] | None

    def is_for(self, caller: Principal | None) -> bool:
        """Return whether the caller may get this reply.

        The caller's credential must have the key id of the first request's credential, at least its
        scopes, and no earlier expiry.
        """
        given = self.credential
        if given is None or caller is None:
            return given is None and caller is None
        return (
            given["keyId"] == caller.key_id
            and caller.scopes >= set(given["scopes"])
            and (caller.expires_ms or TIME_MS_MAX) >= (given["expiresMs"] or TIME_MS_MAX)
        )


def _sealed(reply: Reply, maker: Principal | None, keys: DeploymentKeys) -> bytes:
    """Return the encrypted form of a reply for storage. Some replies contain a secret."""
    credential = maker and {
        "keyId": maker.key_id,
        "scopes": sorted(maker.scopes),
        "expiresMs": maker.expires_ms,
    }
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in reply.headers]
    body = write_json(reply.body).decode()
    stored = {"status": reply.status, "headers": headers, "body": body, "credential": credential}
    text = write_json(stored).decode()
    return seal(text, keys, os.urandom(NONCE_BYTES), KeyPurpose.STORED_REPLY)


def _opened(kept: bytes, keys: DeploymentKeys) -> _Kept:
    text = unseal(kept, keys, KeyPurpose.STORED_REPLY)
    if text is None:
        raise ServiceError(
            ErrorCode.CONFLICT,
            "the stored reply of this request cannot be read, because the deployment key has"
            " changed: check what exists, or use another Idempotency-Key",
        )
    stored = read_json(text)
    headers = tuple(
        (name.encode("latin-1"), value.encode("latin-1")) for name, value in stored["headers"]
    )
    reply = Reply(stored["body"].encode(), status=stored["status"], headers=headers)
    return _Kept(reply, stored["credential"])
