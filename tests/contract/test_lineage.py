"""The registry beside its cards: their lineage, what agents serve themselves, lists by metadata.

Spec: Agent card; decision registry-and-discovery.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from core.canonical import hash_text
from tests.contract.conftest import Caller, MakeCaller, answer, refusal, unique
from tests.platform.loopback import Quiet, loopback

Json = dict[str, Any]
REGISTER = "/v1/agents/register"
NOWHERE = "http://127.0.0.1:9"


def card(endpoint: str = NOWHERE, **more: Any) -> Json:
    """Return the card of an agent of its own capability."""
    did = unique("did:net:agent-")
    offered = [{"id": unique("cap.test.") + ".v1", "description": "A test's"}]
    return {"did": did, "endpoint": endpoint, "version": 1, "capabilities": offered, **more}


def register(caller: Caller, acard: Json) -> Json:
    return answer(caller.http.post(REGISTER, json={"acard": acard}))


def versions(caller: Caller, did: str, **query: Any) -> Json:
    return answer(caller.http.get(f"/v1/agents/{did}/versions", params=query))


def test_each_card_has_the_hash_of_the_one_before(payer: Caller, make_caller: MakeCaller) -> None:
    first = card()
    did, second, reader = first["did"], {**first, "version": 2}, make_caller()
    for acard in (first, first, second):  # the same card again has its place already
        register(payer, acard)
    shown = answer(payer.http.get(f"/v1/agents/{did}"))["acard"]
    newest, oldest = versions(reader, did)["versions"]
    assert (newest["number"], newest["cardVersion"]) == (2, 2)
    assert newest["cardHash"] == hash_text(shown)
    assert newest["previousHash"] == oldest["hash"]
    assert oldest["previousHash"] is None
    for place in (newest, oldest):
        names = ("cardHash", "number", "previousHash")
        made_of = {"did": did, **{name: place[name] for name in names}}
        assert place["hash"] == hash_text(made_of)
    page = versions(reader, did, limit=1)
    rest = versions(reader, did, cursor=page["nextCursor"])
    assert [*page["versions"], *rest["versions"]] == [newest, oldest]
    # History outlives the agent; one that comes back has a place anew.
    answer(payer.http.delete(f"/v1/agents/{did}"))
    assert len(versions(reader, did)["versions"]) == 2
    register(payer, second)
    assert versions(reader, did)["versions"][0]["number"] == 3
    refusal(reader.http.get("/v1/agents/did:net:ghost/versions"), 404, "NOT_FOUND")


def test_a_change_of_a_member_has_a_place(payer: Caller) -> None:
    acard = card()
    register(payer, acard)
    answer(payer.http.patch(f"/v1/agents/{acard['did']}", json={"version": 7}))
    assert [one["cardVersion"] for one in versions(payer, acard["did"])["versions"]] == [7, 1]


@dataclass
class Serving:
    """Serves `text` as an agent card at `address`."""

    address: str = ""
    text: bytes = b""


@pytest.fixture
def agent() -> Iterator[Serving]:
    """An agent that serves any text as its card."""

    class Handler(Quiet):
        def do_GET(self) -> None:
            is_asked = self.path == "/.well-known/acard.json"
            self.send_response(200 if is_asked else 404)
            self.send_header("Content-Length", str(len(made.text)))
            self.end_headers()
            self.wfile.write(made.text)

    made = Serving()
    with loopback(Handler) as made.address:
        yield made


@pytest.mark.parametrize(
    ("change", "differences"),
    [
        ({"unknown": "x"}, []),
        ({"version": 9, "endpoint": "http://elsewhere.example"}, ["endpoint", "version"]),
        ({"capabilities": []}, ["capabilities.{id}"]),
    ],
)
def test_the_card_that_is_served_is_compared_and_changes_nothing(
    payer: Caller, agent: Serving, change: Json, differences: list[str]
) -> None:
    acard = card(f"{agent.address}/sub/path")
    agent.text = orjson.dumps({**acard, **change})
    found = register(payer, acard)["servedCard"]
    named = [one.format(id=acard["capabilities"][0]["id"]) for one in differences]
    assert found == {"status": "different" if named else "same", "differences": named}
    assert answer(payer.http.get(f"/v1/agents/{acard['did']}"))["acard"] == acard


def test_an_agent_that_serves_no_card_is_registered_all_the_same(
    payer: Caller, agent: Serving
) -> None:
    assert register(payer, card())["servedCard"]["status"] == "unreachable"
    for text in (b"[]", b"no JSON", b"[" * 100_000):
        agent.text = text
        found = register(payer, card(agent.address))["servedCard"]
        if len(text) < 1_000:
            assert found == {"status": "different", "differences": [""]}
    assert found["status"] == "unreachable", "more than is read"
    bulk = {"agents": [{"acard": card()}]}
    (made,) = answer(payer.http.post(f"{REGISTER}/bulk", json=bulk))["results"]
    assert "servedCard" not in made


def test_agents_are_listed_by_what_their_cards_say(payer: Caller) -> None:
    author = unique("author ")
    one = card(metadata={"name": "One", "author": author, "model": "m-1"})
    other = card(metadata={"name": "Other", "author": author})
    for acard in (one, other):
        register(payer, acard)

    def listed(**query: str) -> list[str]:
        found = answer(payer.http.get("/v1/agents", params=query))["agents"]
        return [agent["did"] for agent in found]

    assert listed(author=author) == sorted((one["did"], other["did"]))
    assert listed(author=author, name="One") == [one["did"]]
    assert listed(author=author, model="m-1", capabilityId=one["capabilities"][0]["id"])
    assert listed(author=author, name="one") == []
    answer(payer.http.patch(f"/v1/agents/{one['did']}", json={"metadata": {"author": None}}))
    assert listed(author=author) == [other["did"]]
