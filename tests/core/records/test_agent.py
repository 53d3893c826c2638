"""The agent card. Reference: features.md (Agent cards)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from core.records.agent import (
    AgentCard,
    find_secrets,
    without_standing_bids,
)


def card(**changes: Any) -> dict[str, Any]:
    return {
        "did": "did:net:a",
        "endpoint": "http://127.0.0.1:9000",
        "version": 1,
        "capabilities": [{"id": "cap.text.keywords.v1", "description": "Keywords"}],
        **changes,
    }


def test_a_card_comes_back_as_it_was_given_unknown_members_included() -> None:
    given = card(
        metadata={"name": "A", "team": "blue"},
        maxConcurrency=4,
        capabilities=[{"id": "a", "description": "", "price_cents": 3, "inputSchema": {"a": 1}}],
        colour="green",
    )
    assert AgentCard.model_validate(given).to_json() == given


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"did": "did:net:has space"}, "did"),
        ({"endpoint": "http://"}, "endpoint"),
        ({"endpoint": "http://host/?q=1"}, "endpoint"),
        ({"version": 0}, "version"),
        ({"capabilities": [{"id": "a", "price_cents": -1}]}, "capabilities"),
        ({"capabilities": [{"id": "a", "price_cents": 1.5}]}, "capabilities"),
        ({"capabilities": [{"id": "a", "price_cents": "3"}]}, "capabilities"),
        ({"capabilities": [{"id": "a", "description": "x" * 10_001}]}, "capabilities"),
        ({"maxConcurrency": 0}, "maxConcurrency"),
        ({"dispatchPath": "node"}, "dispatchPath"),
    ],
)
def test_a_wrong_member_is_refused_by_name(changes: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError) as refused:
        AgentCard.model_validate(card(**changes))
    assert {error["loc"][0] for error in refused.value.errors()} == {place}


@pytest.mark.parametrize("member", ["did", "endpoint", "version", "capabilities"])
def test_a_missing_member_is_refused(member: str) -> None:
    given = card()
    del given[member]
    with pytest.raises(ValidationError):
        AgentCard.model_validate(given)


def test_secrets_are_found_under_any_spelling_of_their_names_and_not_in_schemas() -> None:
    schema = {"properties": {"password": {"type": "string"}}, "secret": "described"}
    given = {
        "did": "did:net:a",
        "signingSecret": "s",
        "Signing_Secret": "s",
        "password": {"is": "s"},
        "capabilities": [{"id": "c", "apiKey": "s", "inputSchema": schema}],
        "metadata": {"name": "N", "access-token": "s"},
    }
    assert list(find_secrets(given, "acard")) == [
        "acard.signingSecret",
        "acard.Signing_Secret",
        "acard.password",
        "acard.capabilities[0].apiKey",
        "acard.metadata.access-token",
    ]


@pytest.mark.parametrize(
    ("member", "path"),
    [
        ({"apiKey": ["s"]}, "apiKey"),
        ({"apiKey": {"value": "s"}}, "apiKey"),
        ({"api_keys": ["s"]}, "api_keys"),
        ({"openaiApiKey": "s"}, "openaiApiKey"),
        ({"AWS_SECRET_ACCESS_KEY": "s"}, "AWS_SECRET_ACCESS_KEY"),
        ({"token": "s"}, "token"),
        ({"bearerToken": "s"}, "bearerToken"),
        ({"passwd": "s"}, "passwd"),
        ({"password": 1234}, "password"),
        ({"credentials": {"user": "u"}}, "credentials"),
        ({"private-key": "s"}, "private-key"),
        ({"headers": {"X-API-Key": ["s"]}}, "headers.X-API-Key"),
        ({"headers": [[{"authorization": "s"}]]}, "headers[0][0].authorization"),
        ({"inputSchema": {"apiKey": "s"}}, "inputSchema.apiKey"),
        ({"metadata": {"outputSchema": {"apiKey": "s"}}}, "metadata.outputSchema.apiKey"),
        (
            {"metadata": {"capabilities": [{"inputSchema": {"secret": "s"}}]}},
            "metadata.capabilities[0].inputSchema.secret",
        ),
        (
            {"capabilities": [{"examples": {"inputSchema": {"token": "s"}}}]},
            "capabilities[0].examples.inputSchema.token",
        ),
    ],
)
def test_what_is_under_a_secrets_name_is_a_secret_whatever_its_type(
    member: dict[str, Any], path: str
) -> None:
    """Only texts were: a list or an object of the same was stored and shown to everybody."""
    assert list(find_secrets(member, "acard")) == [f"acard.{path}"]


@pytest.mark.parametrize(
    "member",
    [
        {"apiKey": None},
        {"apiKey": ""},
        {"apiKeys": []},
        {"credentials": {}},
        {"password": False},
        {"authorization": True},
        {"maxTokens": 4096},
        {"pricePerToken": 0.1},
        {"tokens": 7},
        {"publicKey": "k"},
        {"keywords": ["a"]},
        {"capabilities": [{"inputSchema": {"properties": {"password": {"type": "string"}}}}]},
    ],
)
def test_what_is_no_secret_stays_in_a_card(member: dict[str, Any]) -> None:
    assert list(find_secrets(member, "acard")) == []


def test_others_read_a_card_without_its_standing_bids() -> None:
    offered = {"id": "a", "description": "", "price_cents": 3}
    given = card(capabilities=[{**offered, "standingBid": {"bidAmount": 0.02}}, offered])
    assert without_standing_bids(given) == card(capabilities=[offered, offered])
