"""What real agents' servers do: they close connections, redirect, and write JSON as they please.

Spec: Dispatch response.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import takewhile
from typing import Any

import pytest

from tests.contract.conftest import Caller, MakeAgent, MakeCaller, answer, unique
from tests.contract.stub_agent import Json
from tests.contract.test_execution_async import one_node
from tests.contract.test_execution_replies import GOOD, at_ms, scripted

# From a dispatch, its headers and its number on the connection: the bytes of the reply, or None.
RawReply = Callable[[Json, int], bytes | None]
REFUSAL = (400, {"status": "error", "error": "url is missing", "code": "MISSING_INPUT"})
NEEDS_N = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


def http(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    """Return a whole HTTP reply."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def good(dispatch: Json) -> bytes:
    """Return the reply of a success."""
    return http(json.dumps({"eventId": dispatch["eventId"], "result": {"n": 1}}).encode())


@contextmanager
def raw_agent(reply: RawReply) -> Iterator[tuple[str, list[Json]]]:
    """Serve bytes; gives the address and the dispatches, each with `key`: its Idempotency-Key.

    Args:
        reply: None ends the connection instead.
    """
    dispatches: list[Json] = []

    def serve(connection: socket.socket) -> None:
        stream, number = connection.makefile("rb"), 0
        while head := list(takewhile(lambda line: line != b"\r\n", stream)):
            headers = dict(line.decode().lower().strip().split(": ", 1) for line in head[1:])
            body = stream.read(int(headers.get("content-length", 0)))
            number += 1
            sent = http(b"{}")
            if head[0].startswith(b"POST") and b"/cancel " not in head[0]:
                dispatches.append({**json.loads(body), "key": headers["idempotency-key"]})
                sent = reply(dispatches[-1], number)  # type: ignore[assignment]
            if sent is None:
                break
            connection.sendall(sent)
        stream.close()
        connection.close()

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", dispatches
        listener.shutdown(socket.SHUT_RDWR)


def chain(capability: str, names: str, **options: Any) -> Json:
    """Return a manifest whose nodes run one after the other."""
    parents = dict(zip(names[1:], names, strict=False))
    return {
        "nodes": {
            name: {
                "capabilityId": capability,
                "dependsOn": [parents[name]] if name in parents else [],
                **options,
            }
            for name in names
        }
    }


def test_a_request_that_meets_a_closed_connection_costs_no_attempt(
    payer: Caller, make_agent: MakeAgent
) -> None:
    def once(dispatch: Json, number: int) -> bytes | None:
        return good(dispatch) if number == 1 else None

    with raw_agent(once) as (url, dispatches):
        record = payer.run(chain(make_agent(endpoint=url).capability, "abc", maxRetries=0))
    assert record["status"] == "success", record
    assert [node["attempts"] for node in record["nodes"].values()] == [1, 1, 1]
    assert len(dispatches) > 3, "some were sent once more"
    events = {dispatch["eventId"]: dispatch["nodeId"] for dispatch in dispatches}
    assert sorted(events.values()) == ["a", "b", "c"], "with the same eventId"


def test_attempts_of_a_node_at_an_agent_have_one_key(payer: Caller, make_agent: MakeAgent) -> None:
    def drop_at_first(dispatch: Json, _: int) -> bytes | None:
        return good(dispatch) if dispatch["attempt"] > 1 else None

    with raw_agent(drop_at_first) as (url, dispatches):
        record = payer.run(chain(make_agent(endpoint=url).capability, "ab"))
    assert record["status"] == "success", record
    keys = {node: {d["key"] for d in dispatches if d["nodeId"] == node} for node in "ab"}
    assert [len(found) for found in keys.values()] == [1, 1]
    assert keys["a"] != keys["b"]
    assert len({dispatch["eventId"] for dispatch in dispatches}) == 4


def test_Retry_After_may_be_a_date(payer: Caller, make_agent: MakeAgent) -> None:
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=5)
    reply = (503, {"__retry_after": format_datetime(due, usegmt=True)})
    agent = make_agent(scripted(reply, GOOD))
    assert payer.run(one_node(agent.capability))["status"] == "success"
    assert at_ms(agent.stub.dispatches[1]) >= due.timestamp() * 1_000


def test_a_reply_is_taken_as_it_is_meant(payer: Caller, make_agent: MakeAgent) -> None:
    """A byte order mark, a coding that is none, and an empty error."""
    body = b'\xef\xbb\xbf{"error": "", "result": {"n": 1}}'
    reply = http(body, Content_Encoding="utf-8", Content_Type="text/html; charset=x")
    with raw_agent(lambda *_: reply) as (url, _):
        record = payer.run(one_node(make_agent(endpoint=url).capability, maxRetries=0))
    assert (record["status"], record["nodes"]["a"]["result"]) == ("success", {"n": 1}), record


def test_a_reply_that_is_not_json_is_refused_with_reason_and_place(
    payer: Caller, make_agent: MakeAgent
) -> None:
    with raw_agent(lambda *_: http(b'{"result": NaN}')) as (url, _):
        record = payer.run(one_node(make_agent(endpoint=url).capability, maxRetries=0))
    error = record["nodes"]["a"]["error"]
    assert error["code"] == "INVALID_REPLY"
    assert "NaN is no value at line 1 column 12" in error["message"]


# -- what costs an agent ---------------------------------------------------------------------------


def bidder(
    make_agent: MakeAgent, owner: Caller, reply: tuple[int, Json] | bytes, **offer: Any
) -> Any:
    """Return an agent with a stake of 10 that bids for its capability; none else offers it."""
    price = {"price_cents": 5, "standingBid": {"bidAmount": 0.1}, **offer}
    return make_agent(scripted(reply), owner=owner, price=price, stake=10)  # type: ignore[arg-type]


def auctioned(agent: Any, **options: Any) -> Json:
    """Return a manifest whose node locks a hundredth of a credit of its bidder's stake."""
    return one_node(agent.capability, selection="auction", maxCostCredits=1, **options)


def holdings(payer: Caller, admin: Caller, agent: Any) -> tuple[float, float, int]:
    """Return the payer's balance, the agent's stake, and its failed tasks."""
    stake = answer(admin.http.get(f"/v1/stakes/{agent.did}"))["stakedAmount"]
    failed = answer(admin.http.get(f"/v1/reputation/{agent.did}"))["failedTasks"]
    return payer.balance()["balance"], stake, failed


def test_stakes_cannot_be_farmed_by_bad_inputs(
    payer: Caller, admin: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """Each bad input was paid to its payer out of the stake of the agent that refused it."""
    agent = bidder(make_agent, make_caller(20), REFUSAL)
    before = holdings(payer, admin, agent)
    for _ in range(2):
        node = payer.run(auctioned(agent, payload={"nonsense": 1}))["nodes"]["a"]
        assert (node["status"], node["attempts"]) == ("failed", 1), "final for the agent"
        assert node["error"]["code"] == "AGENT_ERROR"
    assert holdings(payer, admin, agent) == before


def test_a_bidder_that_refuses_what_its_schema_admits_is_slashed(
    payer: Caller, admin: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    agent = bidder(make_agent, make_caller(20), REFUSAL, inputSchema=NEEDS_N)
    balance, stake, _ = holdings(payer, admin, agent)
    refused = payer.run(auctioned(agent, payload={"n": "one"}))
    assert refused["nodes"]["a"]["error"]["code"] == "INPUT_SCHEMA"
    assert holdings(payer, admin, agent) == (balance, stake, 0), "nothing was sent"
    payer.run(auctioned(agent, payload={"n": 1}))
    assert holdings(payer, admin, agent) == pytest.approx((balance + 0.001, stake - 0.001, 1))


@pytest.mark.parametrize("schema", [None, NEEDS_N], ids=["no schema", "a schema"])
def test_a_refusal_counts_against_who_has_allowed_the_input(
    payer: Caller, admin: Caller, make_agent: MakeAgent, schema: Json | None
) -> None:
    offer = {"price_cents": 5, **({} if schema is None else {"inputSchema": schema})}
    agent = make_agent(scripted(REFUSAL), price=offer)
    payer.run(one_node(agent.capability, payload={"n": 1}))
    assert holdings(payer, admin, agent)[2] == (0 if schema is None else 1)


def test_a_redirect_names_its_location_and_costs_nothing(
    payer: Caller, admin: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    moved = http(b"", "308 Permanent Redirect", Location="https://new.example/node/")
    owner = make_caller(20)
    with raw_agent(lambda *_: moved) as (url, _):
        agent = bidder(make_agent, owner, REFUSAL)
        answer(owner.http.patch(f"/v1/agents/{agent.did}", json={"endpoint": url}))
        before = holdings(payer, admin, agent)
        error = payer.run(auctioned(agent, maxRetries=0))["nodes"]["a"]["error"]
    assert error["code"] == "INVALID_REPLY"
    assert "HTTP 308 to 'https://new.example/node/'" in error["message"]
    assert holdings(payer, admin, agent) == before


def test_an_error_that_names_something_else_as_unknown_is_retried(
    payer: Caller, make_agent: MakeAgent
) -> None:
    capability = unique("cap.test.") + ".v1"
    words = f"{capability} failed: unknown error, please retry"
    agent = make_agent(
        scripted((200, {"status": "error", "error": words}), GOOD), capability=capability
    )
    assert payer.run(one_node(capability))["status"] == "success"
    assert len(agent.stub.dispatches) == 2
