"""A model is asked over real HTTP: what is sent, and that nothing it answers does harm."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from federation.chat_completions import (
    REPLY_BYTES_MAX,
    ChatModel,
    ModelUnavailable,
    complete_chat,
)
from tests.platform.stub_model import Answer, RawReply, StubModel, completion, stub_model

MESSAGES = [{"role": "user", "content": "What?"}]
LOOPBACK = ("127.0.0.0/8",)


def model_at(url: str, **more: Any) -> ChatModel:
    """Return a model that answers within a minute, or as it is said."""
    known = {"name": "m-1", "key": "k-1", "timeout_s": 60.0, "egress_allow": LOOPBACK}
    return ChatModel(url=url, **{**known, **more})


def ask(answer: Answer | None, **more: Any) -> tuple[str, StubModel]:
    """Return what a model answers, and the model."""
    with stub_model(answer) as stub:
        return asyncio.run(complete_chat(model_at(stub.url, **more), MESSAGES)), stub


def test_a_question_is_sent_as_the_protocol_says() -> None:
    found, stub = ask(lambda _: "An answer")
    assert found == "An answer"
    assert stub.paths == ["/v1/chat/completions"]
    assert stub.asked == [{"model": "m-1", "messages": MESSAGES}]
    assert stub.headers[0]["authorization"] == "Bearer k-1"
    assert stub.headers[0]["content-type"] == "application/json"
    _, without_key = ask(lambda _: "x", key="")
    assert "authorization" not in without_key.headers[0]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (RawReply(500, b"{}"), "status 500"),
        (RawReply(429, b"{}"), "status 429"),
        (RawReply(body=b"no JSON"), "no chat completion"),
        (RawReply(body=b"{}"), "no chat completion"),
        (RawReply(body=b'{"choices": []}'), "no chat completion"),
        (RawReply(body=b'{"choices": [{"message": {"content": null}}]}'), "no chat completion"),
        (RawReply(body=b'{"x": ' + b"[" * 200_000), "no chat completion"),
        (RawReply(body=b'{"x": "\xff"}'), "no chat completion"),
        (completion("x" * REPLY_BYTES_MAX), "TOO_LARGE"),
    ],
    ids=["500", "429", "text", "empty", "no choice", "null", "deep", "not UTF-8", "huge"],
)
def test_what_is_no_answer_is_said_for_the_log(reply: RawReply, why: str) -> None:
    with pytest.raises(ModelUnavailable, match=why):
        ask(lambda _: reply)


def test_an_address_that_is_not_public_is_reached_only_where_it_may_be() -> None:
    with stub_model(lambda _: "x") as stub, pytest.raises(ModelUnavailable, match="DENIED"):
        asyncio.run(complete_chat(model_at(stub.url, egress_allow=()), MESSAGES))
    assert stub.asked == []


@pytest.mark.parametrize("url", ["http://a:99999/v1", "http://[v1]/v1", "http://127.0.0.1:1/v1"])
def test_an_address_that_leads_nowhere_is_said(url: str) -> None:
    with pytest.raises(ModelUnavailable):
        asyncio.run(complete_chat(model_at(url), MESSAGES))


def test_a_slow_model_is_left_at_the_deadline() -> None:
    with stub_model(None) as stub:
        with pytest.raises(ModelUnavailable, match="TIMEOUT"):
            asyncio.run(complete_chat(model_at(stub.url, timeout_s=0.1), MESSAGES))
        stub.wait_left()


def test_a_cancelled_wait_closes_the_connection() -> None:
    async def leave(stub: StubModel) -> None:
        waiting = asyncio.ensure_future(complete_chat(model_at(stub.url), MESSAGES))
        await asyncio.to_thread(stub.wait_asked)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with stub_model(None) as stub:
        asyncio.run(leave(stub))
        stub.wait_left()


def test_the_key_is_in_no_text_of_the_model() -> None:
    assert "k-1" not in repr(model_at("http://a/v1"))
