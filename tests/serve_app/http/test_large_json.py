"""Large JSON is parsed piece by piece into the same values, and refused for the same reasons."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.gateway.gateway import Gateway
from core.errors import ServiceError
from core.records.api.shape import Body
from core.settings import Settings
from core.trust.deployment_keys import DeploymentKeys
from ledger.replies import ReplyStore
from serve_app.callers.admission import Admission
from serve_app.callers.auth import Authenticator
from serve_app.callers.limits import RateClass, RateLimiter, TakeBlock
from serve_app.callers.peers import Peers
from serve_app.http import large_json
from serve_app.http.bodies import parse_json
from serve_app.http.calls import Call, Operation, Reply
from serve_app.http.endpoint import Endpoint
from serve_app.http.large_json import PIECE_BYTES, Pieces, parse_large_json
from serve_app.operations.agents.heartbeat_store import Heartbeats
from serve_app.services import Services
from tests.serve_app.bounded import run

BODY_BYTES = 256 * 1024

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-1, 1) | st.text(max_size=3),
    lambda below: st.lists(below, max_size=5) | st.dictionaries(st.text(max_size=2), below),
    max_leaves=30,
)


def filled(item: bytes, size: int = BODY_BYTES) -> bytes:
    """Return an array of so many bytes of one item."""
    return b"[" + b",".join([item] * ((size - 2) // (len(item) + 1))) + b"]"


def keyed(item: bytes, size: int = BODY_BYTES) -> bytes:
    """Return an object of so many bytes with one item under many names."""
    count = size // (len(item) + 9)
    return b"{" + b",".join(b'"%05x":%s' % (number, item) for number in range(count)) + b"}"


# The slowest shapes for a parser in C, and those that splitting has to keep whole.
SHAPES = {
    "arrays 50 deep": filled(b"[" * 50 + b"]" * 50),
    "objects 50 deep": filled(b'{"a":' * 50 + b"1" + b"}" * 50),
    "empty arrays": filled(b"[]"),
    "small objects": filled(b'{"a":0}'),
    "named arrays": keyed(b"[0]"),
    "an array in an array": b"[1," + filled(b"[ [] ]") + b" , 2 ]",
    "deep, and wide there": b'{"a":' * 50 + filled(b"[[]]") + b"}" * 50,
    "brackets in texts": filled(b'"[[[{{{,\\"[["'),
    "a text of brackets": orjson.dumps("[" * BODY_BYTES),
}


async def pieces_of(text: bytes) -> tuple[Any, list[Any]]:
    value, pieces = await parse_large_json("did:x:a", text, depth_max=64)
    return value, [] if pieces is None else list(pieces._values)


@pytest.mark.parametrize("name", SHAPES)
def test_a_large_body_says_what_it_says(name: str) -> None:
    async def scenario() -> None:
        value, _ = await parse_large_json("did:x:a", SHAPES[name], depth_max=64)
        assert value == orjson.loads(SHAPES[name])

    run(scenario)


@pytest.mark.parametrize("name", ["arrays 50 deep", "objects 50 deep", "empty arrays"])
def test_no_piece_of_a_dense_body_is_larger_than_a_turn_of_the_loop_takes(name: str) -> None:
    """A body of 512 KiB was built in one call of 20 ms, which nothing interrupts."""

    async def scenario() -> None:
        _, pieces = await pieces_of(SHAPES[name])
        assert len(pieces) > BODY_BYTES // PIECE_BYTES // 2
        assert max(len(orjson.dumps(piece)) for piece in pieces) <= 2 * PIECE_BYTES

    run(scenario)


def test_the_pieces_of_a_body_are_freed_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """To free 512 KiB of nested arrays takes 10 ms in one go."""
    monkeypatch.setattr(large_json, "PARSE_SLICE_MS", 0)

    async def scenario() -> None:
        freed: list[int] = []

        class Part:
            def __del__(self) -> None:
                freed.append(1)

        pieces = Pieces()
        whole = [[Part()] for _ in range(3)]
        for part in whole:
            pieces.add(part)
        del part
        whole.clear()
        assert not freed
        del pieces
        gc.collect()
        assert not freed
        counts = []
        while len(freed) < 3:
            await asyncio.sleep(0)
            counts.append(len(freed))
        assert counts == [1, 2, 3]

    run(scenario)


@pytest.mark.parametrize(
    "text",
    [
        filled(b"[") + b"]",
        filled(b"[]")[:-1],
        filled(b"[]") + b"x",
        filled(b'{"a":\xff}'),
        filled(b'{"\xff":[]}'),
        filled(b'{"a":"\\ud800"}'),
        filled(b'{"a":[1e400]}'),
        filled(b'{"a":["\\u0000"]}'),
        filled(b"[" * 64 + b"]" * 64),
        b"[" * BODY_BYTES,
        b"[" + filled(b"[]")[:-1] + b",[01]]]",
    ],
)
def test_what_is_refused_of_a_small_body_is_refused_of_a_large_one(text: bytes) -> None:
    async def scenario() -> None:
        with pytest.raises(ServiceError) as expected:
            parse_json(text, depth_max=64)
        with pytest.raises(ServiceError) as refusal:
            await parse_large_json("did:x:a", text, depth_max=64)
        assert refusal.value.code is expected.value.code
        assert refusal.value.problems[0].path == expected.value.problems[0].path

    run(scenario)


@given(_JSON, st.integers(0, 5))
def test_splitting_changes_neither_the_value_nor_its_depth(value: Any, depth_max: int) -> None:
    """With everything dense and pieces of a few bytes, all of a value is split."""
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2)

    async def outcome(parse: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        try:
            return await parse()
        except ServiceError as error:
            return str(error)

    async def at_once() -> Any:
        return parse_json(text, depth_max=depth_max)

    async def split() -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(large_json, "IN_LOOP_BYTES_MAX", 0)
            patch.setattr(large_json, "CONTAINERS_AT_ONCE_MAX", 0)
            patch.setattr(large_json, "PIECE_BYTES", 4)
            return (await parse_large_json("did:x:a", text, depth_max=depth_max))[0]

    assert asyncio.run(outcome(split)) == asyncio.run(outcome(at_once))


class _Anything(Body):
    """A body of any members."""

    items: list[Any]


class _Settings:
    """A gateway that has settings alone."""

    settings = Settings(deployment_key=bytes(32).hex())


def test_the_endpoint_parses_large_bodies_in_pieces_and_judges_them_beside_the_loop() -> None:
    async def scenario() -> None:
        seen: list[tuple[int, str]] = []

        class Seen(_Anything):
            @classmethod
            def respelled(cls, raw: Any) -> Any:
                seen.append((len(raw["items"]), threading.current_thread().name))
                return {"items": []}

        async def handler(call: Call) -> Reply:
            return Reply({"pieces": 0 if call.pieces is None else len(call.pieces)})

        operation = Operation(
            method="POST", path="/x", handler=handler, summary="", scope=None,
            rate=RateClass.EXEMPT, tag="", reply=dict, body=Seen,
        )  # fmt: skip
        services = Services(
            cast(Gateway, _Settings()), cast(Authenticator, None),
            RateLimiter(_Settings.settings, cast(TakeBlock, None)), cast(Heartbeats, None),
            cast(ReplyStore, None), Admission(_Settings.settings), Peers(DeploymentKeys()),
        )  # fmt: skip
        endpoint = Endpoint([operation], services)
        replies = []
        for body in (b'{"items":[]}', b'{"items":%s}' % filled(b"[]", BODY_BYTES - 20)):
            scope = {"type": "http", "method": "POST", "path": "/x", "raw_path": b"/x",
                     "headers": [(b"content-type", b"application/json")]}  # fmt: skip

            async def receive(body: bytes = body) -> Any:
                return {"type": "http.request", "body": body, "more_body": False}

            sent: list[Any] = []

            async def send(message: Any, sent: list[Any] = sent) -> None:
                sent.append(message)

            await endpoint(scope, receive, send)
            assert sent[0]["status"] == 200, sent
            replies.append(orjson.loads(sent[1]["body"])["pieces"])
        assert replies[0] == 0 and replies[1] > 20
        (_, small), (_, large) = seen
        assert small == threading.current_thread().name != large

    run(scenario)
