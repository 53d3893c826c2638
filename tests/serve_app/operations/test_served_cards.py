"""Looks at the cards that agents serve: at their origin, so many a minute, and never for long."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from federation.documents import DocumentUnavailable
from serve_app.operations.agents.served_cards import (
    LOOKS_AT_ONCE,
    LOOKS_PER_OWNER,
    ServedCards,
    served_card_url,
)

CARD = {"did": "did:net:a", "endpoint": "http://a.example/x", "version": 1, "capabilities": []}
OWNER = "did:net:owner"
NOT_COMPARED = {"status": "not_compared", "differences": []}


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://a.example:8080/x/y", "http://a.example:8080/.well-known/acard.json"),
        ("https://a.example", "https://a.example/.well-known/acard.json"),
    ],
)
def test_a_card_is_served_at_the_origin_of_its_endpoint(endpoint: str, url: str) -> None:
    assert served_card_url(endpoint) == url


async def test_an_owner_has_so_many_looks_a_minute() -> None:
    asked: list[str] = []

    async def fetch(url: str) -> bytes:
        asked.append(url)
        return orjson.dumps(CARD)

    cards = ServedCards(fetch)
    for _ in range(LOOKS_PER_OWNER):
        assert (await cards.compare(CARD, OWNER, 0))["status"] == "same"
    assert await cards.compare(CARD, OWNER, 1) == NOT_COMPARED
    assert (await cards.compare(CARD, "did:net:other", 1))["status"] == "same"
    assert (await cards.compare(CARD, OWNER, 60_000))["status"] == "same"
    assert await cards.compare({**CARD, "endpoint": ""}, OWNER, 60_000) == NOT_COMPARED
    assert len(asked) == LOOKS_PER_OWNER + 2


async def test_a_slow_agent_is_given_up_and_no_more_are_looked_at_at_once() -> None:
    async def fetch(_: str) -> bytes:
        await asyncio.Event().wait()
        return b""

    cards = ServedCards(fetch, timeout_s=0.05)
    found = await asyncio.gather(
        *(cards.compare(CARD, f"did:net:{one}", 0) for one in range(LOOKS_AT_ONCE + 1))
    )
    assert [one["status"] for one in found] == ["unreachable"] * LOOKS_AT_ONCE + ["not_compared"]
    assert repr(cards) == "<ServedCards looking=0>"


@pytest.mark.parametrize(
    ("text", "status"),
    [(None, "unreachable"), (b"no JSON", "different"), (b"[" * 100 + b"]" * 100, "different")],
)
async def test_what_is_no_card_is_said_to_be_none(text: bytes | None, status: str) -> None:
    async def fetch(_: str) -> bytes:
        if text is None:
            raise DocumentUnavailable("got status 404, expected 200")
        return text

    found = await ServedCards(fetch).compare(CARD, OWNER, 0)
    assert found["status"] == status
    assert found["differences"] == ([""] if status == "different" else [])
