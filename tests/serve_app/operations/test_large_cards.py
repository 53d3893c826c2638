"""Cards that are larger than allowed, and where large ones are judged. Run through the endpoint."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from core.settings import Settings
from core.trust.access import Principal
from ledger.reads.reader import RowPage
from ledger.reads.stored import RowDict
from serve_app.operations.agents.agents import OPERATIONS
from serve_app.operations.agents.registration import CARD_BYTES_MAX
from tests.serve_app.parts import endpoint_of, request

SETTINGS = Settings()
OWNER, DID = "did:net:owner", "did:net:agent"
CARD = {"did": DID, "endpoint": "", "version": 1, "capabilities": [{"id": "cap.a.v1"}]}
SECRET = {"apiKey": "0123456789"}
MANY = [[]] * 60_000


class Registry:
    """A gateway that has this agent, and the authenticator that knows its owner."""

    settings = SETTINGS

    def __init__(self, card: object = CARD) -> None:
        self.reader = self
        self._card = orjson.dumps(card).decode()

    async def heard_agent(self, did: str) -> RowDict:
        return {
            "did": DID,
            "owner_did": OWNER,
            "status": "active",
            "subnet_id": None,
            "card": self._card,
            "key_number": 1,
            "proven_by": None,
            "card_counter": 0,
            "endpoint": "",
            "registered_ms": 0,
            "updated_ms": 0,
            "is_heard": False,
            "is_revoked": False,
        }

    async def agents(self, **_: object) -> RowPage:
        return RowPage([await self.heard_agent(DID)], is_cut=False)

    def recognise(self, *_: object) -> Principal:
        return Principal(OWNER, "k", frozenset(("agents:write",)), "unlimited")


async def answered(
    registry: Registry, method: str, path: str, body: object = None, after: bytes = b""
) -> tuple[int, Any]:
    """Return the status and the body with which a request is answered.

    Args:
        after: written behind the body.
    """
    endpoint = endpoint_of(OPERATIONS, path, registry, registry)
    path_params = {"did": DID} if "{did}" in path else {}
    sent = orjson.dumps(body) + after
    status, reply = await request(
        endpoint, method, path.format(did=DID), sent, path_params=path_params
    )
    return status, orjson.loads(reply)


async def refused(
    registry: Registry, method: str, path: str, body: object, after: bytes = b""
) -> tuple[int, str]:
    """Return the status and the problems with which a request is refused; arguments as above."""
    status, reply = await answered(registry, method, path, body, after)
    return status, str(reply["errors"])


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/v1/agents/{did}", {"more": MANY, **SECRET}),
        ("PATCH", "/v1/agents/{did}", {"acard": {"more": MANY, **SECRET}}),
        ("POST", "/v1/agents/register", {"acard": {**CARD, "more": MANY, **SECRET}}),
        ("POST", "/v1/agent/register", {**CARD, "more": MANY, **SECRET}),
    ],
)
async def test_a_card_that_is_too_large_is_refused_before_anything_of_it_is_judged(
    method: str, path: str, body: object
) -> None:
    """A change of 500 KB held the replica's loop for 0.6 s, to be refused for its size then."""

    status, detail = await refused(Registry(), method, path, body)
    assert (status, "an agent card of at most 65536 bytes" in detail) == (400, True), detail


class Turns:
    """Counts the turns of the loop until the block ends."""

    def __enter__(self) -> Turns:
        self.count = 0
        self._handle = asyncio.get_running_loop().call_soon(self._turn)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.cancel()

    def _turn(self) -> None:
        self.count += 1
        self._handle = asyncio.get_running_loop().call_soon(self._turn)


@pytest.mark.parametrize(
    ("card", "change", "is_beside"),
    [
        (CARD, SECRET, False),
        (CARD, {"more": MANY[:15_000], **SECRET}, True),
        ({**CARD, "more": MANY[:15_000]}, SECRET, True),
    ],
)
async def test_a_large_change_or_one_of_a_large_card_is_judged_beside_the_loop(
    card: object, change: object, is_beside: bool
) -> None:
    with Turns() as turns:
        status, detail = await refused(Registry(card), "PATCH", "/v1/agents/{did}", change)
    assert (status, "a secret" in detail) == (400, True), detail
    assert bool(turns.count) == is_beside, turns.count


@pytest.mark.parametrize("path", ["/v1/agents/{did}", "/v1/agents"])
@pytest.mark.parametrize("is_large", [False, True])
async def test_a_large_stored_card_is_read_beside_the_loop(path: str, is_large: bool) -> None:
    """Each of 60 KB held the replica's loop for 11 to 16 ms."""

    card = {**CARD, "more": MANY[:15_000] if is_large else []}
    with Turns() as turns:
        status, reply = await answered(Registry(card), "GET", path)
    (agent,) = reply.get("agents", [reply])
    assert status == 200
    assert len(agent["acard"]["more"]) == len(card["more"])
    assert bool(turns.count) == is_large, turns.count


async def test_a_card_that_is_only_written_out_at_length_is_judged() -> None:
    """Blanks and escapes are no part of a card's size."""

    change = {"more": "x", **SECRET}
    path, blanks = "/v1/agents/{did}", b" " * CARD_BYTES_MAX
    status, detail = await refused(Registry(), "PATCH", path, change, after=blanks)
    assert (status, "a secret" in detail) == (400, True), detail
