"""What becomes of a repeated request: answered as before, refused, or done after all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from core.errors import ErrorCode, ServiceError
from core.settings import Settings
from core.trust.access import Principal
from ledger.replies import KeptReply
from serve_app.http.calls import REPLAYED, Call, Repeats, Reply
from serve_app.http.idempotency import once, repeat_key
from serve_app.http.worker_thread import IN_LOOP_BYTES_MAX
from serve_app.services import Services
from tests.serve_app.parts import call_of, gateway_with, services_of

PRINCIPAL = Principal("did:net:p", "key", frozenset({"keys:write"}), expires_ms=2_000)
SECRET = "cb_the-secret-of-a-new-key"
Work = Callable[[Call], Awaitable[Reply]]


class Kept:
    """Replies in memory, with the rules of the table (tests/ledger/test_replies.py)."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], tuple[bytes, bytes | None]] = {}

    async def open(self, principal: str, key: str, request_hash: bytes) -> KeptReply:
        is_new = (principal, key) not in self.rows
        first_hash, reply = self.rows.setdefault((principal, key), (request_hash, None))
        return KeptReply(first_hash, reply, is_new)

    async def keep(self, principal: str, key: str, request_hash: bytes, reply: bytes) -> None:
        self.rows[(principal, key)] = (request_hash, reply)

    async def drop(self, principal: str, key: str) -> None:
        del self.rows[(principal, key)]


def services(kept: Kept, deployment_key: str = "11" * 32) -> Services:
    return services_of(gateway_with(Settings(deployment_key=deployment_key)), replies=kept)


def repeated(
    with_services: Services,
    body: bytes = b"{}",
    path: bytes = b"/v1/keys",
    key: bytes | None = b"k",
    caller: Principal = PRINCIPAL,
) -> Call:
    return call_of(
        with_services,
        headers={} if key is None else {b"idempotency-key": key},
        raw_path=path,
        principal=caller,
        body=body,
        repeats=Repeats.BY_REPLY,
    )


async def answered(call: Call, work: Work) -> Reply:
    """Return the reply of a call, as the endpoint gets it."""
    call.repeat_key = await repeat_key(call)
    return await once(call, call.caller.did, work, maker=call.caller)


def counting(reply: Reply | Exception) -> tuple[Work, list[str]]:
    """Return work that answers like this, and the command keys of each time it was done."""
    done: list[str] = []

    async def work(call: Call) -> Reply:
        done.append(call.command_key("fallback"))
        if isinstance(reply, Exception):
            raise reply
        return reply

    return work, done


@pytest.mark.parametrize(
    ("other", "is_shown"),
    [
        ({"key_id": "another"}, False),
        ({"scopes": frozenset()}, False),
        ({"scopes": frozenset({"ledger:read"})}, False),
        ({"expires_ms": 1_999}, False),
        ({"expires_ms": 2_001, "scopes": frozenset({"keys:write", "ledger:read"})}, True),
        ({"expires_ms": None}, True),
    ],
)
async def test_a_kept_reply_is_shown_to_the_credential_that_it_was_given_to(
    other: dict[str, Any], is_shown: bool
) -> None:
    """With another one of the same owner the work is done again, under the same command key."""
    work, done = counting(Reply({"key": SECRET}))
    again, redone = counting(Reply({"key": None}))

    here = services(Kept())
    await answered(repeated(here), work)
    reply = await answered(repeated(here, caller=replace(PRINCIPAL, **other)), again)
    assert (await answered(repeated(here), again)).body == b'{"key":"%s"}' % SECRET.encode()
    assert reply.headers == (REPLAYED,)
    assert (SECRET in str(reply.body)) is is_shown
    assert redone == ([] if is_shown else done)


async def test_without_a_key_every_call_is_done() -> None:
    work, done = counting(Reply({}))

    here = services(Kept())
    for _ in range(2):
        await answered(repeated(here, key=None), work)
    assert done == ["fallback", "fallback"]


@pytest.mark.parametrize(
    "failure", [ServiceError(ErrorCode.LEDGER_UNAVAILABLE, "unknown outcome"), RuntimeError("?")]
)
async def test_an_unknown_outcome_is_gone_on_with_under_the_same_command_key(
    failure: Exception,
) -> None:
    fail, tried = counting(failure)
    work, done = counting(Reply({}))

    here = services(Kept())
    with pytest.raises(type(failure)):
        await answered(repeated(here), fail)
    with pytest.raises(ServiceError) as refused:
        await answered(repeated(here, body=b"[]"), work)
    assert refused.value.code is ErrorCode.KEY_REUSED
    assert REPLAYED not in (await answered(repeated(here), work)).headers
    assert tried == done
    assert tried != ["fallback"]


async def test_a_repeat_waits_for_the_reply_to_the_first() -> None:
    refuse, done = counting(ServiceError(ErrorCode.NOT_CANCELLABLE, "it has ended"))

    here = services(Kept())
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(call: Call) -> Reply:
        begun.set()
        await may_end.wait()
        return Reply({"n": 1})

    first = asyncio.ensure_future(answered(repeated(here), slow))
    await begun.wait()
    repeats = [asyncio.ensure_future(answered(repeated(here), refuse)) for _ in range(4)]
    await asyncio.sleep(0)
    may_end.set()
    assert (await first).body == {"n": 1}
    for repeat in await asyncio.gather(*repeats):
        assert (repeat.body, repeat.headers) == (b'{"n":1}', (REPLAYED,))
    assert done == []


async def test_a_repeat_does_the_work_when_the_first_is_refused() -> None:
    here = services(Kept())
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def refused_late(call: Call) -> Reply:
        begun.set()
        await may_end.wait()
        raise ServiceError(ErrorCode.INSUFFICIENT_CREDITS, "too dear")

    first = asyncio.ensure_future(answered(repeated(here), refused_late))
    await begun.wait()
    work, _ = counting(Reply({"n": 2}))
    repeat = asyncio.ensure_future(answered(repeated(here), work))
    may_end.set()
    with pytest.raises(ServiceError):
        await first
    assert (await repeat).headers == ()


async def test_a_reply_that_refuses_every_item_is_not_kept() -> None:
    refuse, _ = counting(Reply({"results": []}, is_refusal=True))
    work, done = counting(Reply({"results": [1]}))

    here = services(Kept())
    await answered(repeated(here), refuse)
    assert REPLAYED not in (await answered(repeated(here), work)).headers
    assert len(done) == 1


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (b'{"a":1,"b":[2]}', b' { "b" : [ 2.0 ],\n"a":1e0 } ', True),
        (b'{"a":"\xc3\xa9/"}', b'{"\\u0061":"\\u00e9\\/"}', True),
        (b"", b"{}", True),
        (b"[]", b"{}", False),
        (b'{"a":1}', b'{"a":"1"}', False),
        (b'{"a":null}', b"{}", False),
        (b"null", b"{}", False),
    ],
)
def test_a_body_is_compared_by_its_values(one: bytes, other: bytes, is_same: bool) -> None:
    async def hash_of(body: bytes) -> bytes:
        found = await repeat_key(repeated(services(Kept()), body))
        assert found is not None
        return found.request_hash

    hashes = [asyncio.run(hash_of(body)) for body in (one, other)]
    assert (hashes[0] == hashes[1]) is is_same


async def test_a_reply_is_kept_although_its_client_has_left() -> None:
    here = services(Kept())
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def slow(call: Call) -> Reply:
        begun.set()
        await may_end.wait()
        return Reply({"n": 1})

    handler = asyncio.ensure_future(answered(repeated(here), slow))
    await begun.wait()
    handler.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handler
    may_end.set()
    work, done = counting(Reply({"n": 2}))
    async with asyncio.timeout(60):
        while (again := await answered(repeated(here), work)).body == {"n": 2}:
            await asyncio.sleep(0)
    assert again.body == b'{"n":1}'
    assert REPLAYED in again.headers
    assert len(done) <= 1


async def test_no_secret_is_stored_in_clear_and_another_deployment_cannot_read_it() -> None:
    work, _ = counting(Reply({"key": SECRET}))

    kept = Kept()
    await answered(repeated(services(kept)), work)
    ((_, stored),) = kept.rows.values()
    assert stored is not None and SECRET.encode() not in stored
    with pytest.raises(ServiceError) as refused:
        await answered(repeated(services(kept, "22" * 32)), work)
    assert refused.value.code is ErrorCode.CONFLICT


async def test_a_large_body_has_the_same_hash_as_a_small_one_would() -> None:
    async def hash_of(body: bytes) -> bytes:
        found = await repeat_key(repeated(services(Kept()), body))
        assert found is not None
        return found.request_hash

    large = b"x" * (IN_LOOP_BYTES_MAX + 1)
    assert await hash_of(large) == await hash_of(large)
    assert await hash_of(large) != await hash_of(large[1:])
