"""What one caller does to the front, another does not feel; addresses and owners are told apart.

The session's deployment listens on loopback, all of which are addresses of this machine: a request
from 127.0.0.2 is another address than one from 127.0.0.3. Spec: Limits; decisions http-edge,
fairness-and-long-work and limits-and-admission.
"""

from __future__ import annotations

import json
import select
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    client,
    refusal,
    unique,
    wait,
)
from tests.platform.deployments import RunningDeployment

RESULT = "/v1/workflows/nodeResult"


@contextmanager
def client_from(deployment: RunningDeployment, address: str) -> Iterator[httpx.Client]:
    """Yield a client without a key whose connections come from this address."""
    transport = httpx.HTTPTransport(local_address=address)
    with client(deployment.url, transport=transport) as http:
        yield http


@contextmanager
def connection_from(deployment: RunningDeployment, address: str) -> Iterator[socket.socket]:
    """Yield a bare connection from this address."""
    parts = urlsplit(deployment.url)
    assert parts.hostname is not None
    with socket.create_connection(
        (parts.hostname, parts.port), timeout=120, source_address=(address, 0)
    ) as connection:
        yield connection


def remaining(response: httpx.Response) -> int:
    """Return how many calls the caller has left."""
    assert response.status_code == 200, response.text
    return int(response.headers["x-ratelimit-remaining"])


def test_addresses_have_separate_budgets(deployment: RunningDeployment) -> None:
    with (
        client_from(deployment, "127.0.0.2") as second,
        client_from(deployment, "127.0.0.3") as third,
    ):
        first_left = remaining(second.get("/v1/agents?limit=1"))
        third_left = remaining(third.get("/v1/agents?limit=1"))
        assert [remaining(second.get("/v1/agents?limit=1")) for _ in range(3)] == [
            first_left - 1,
            first_left - 2,
            first_left - 3,
        ]
        assert remaining(third.get("/v1/agents?limit=1")) == third_left - 1


@pytest.mark.parametrize(
    "header",
    ["x-forwarded-for", "forwarded", "x-real-ip", "x-callboard-peer", "X-Callboard-Peer"],
)
def test_no_header_of_a_client_changes_its_address(
    deployment: RunningDeployment, header: str
) -> None:
    with client_from(deployment, "127.0.0.4") as http:
        left = remaining(http.get("/v1/agents?limit=1"))
        for number in range(1, 4):
            address = f"192.0.2.{number}"
            if "peer" in header:
                address = f"{'0' * 32} {address}"
            forged = {header: f"for={address}" if header == "forwarded" else address}
            assert remaining(http.get("/v1/agents?limit=1", headers=forged)) == left - number


def test_wrong_keys_are_limited_by_address_and_hurt_no_known_key(
    deployment: RunningDeployment, make_caller: MakeCaller
) -> None:
    """Issue row 8: twice as many wrong keys at once as an address may have looked up a minute."""
    known = make_caller()
    with client_from(deployment, "127.0.0.5") as http, ExitStack() as stack:
        own = {"x-api-key": known.key}
        answer(http.get("/v1/ledger/balance", headers=own))
        guessing = [
            stack.enter_context(connection_from(deployment, "127.0.0.5")) for _ in range(600)
        ]
        for connection in guessing:
            key = unique("cb_wrong-")
            head = f"GET /v1/ledger/balance HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n\r\n"
            connection.sendall(head.encode())
        answer(http.get("/v1/ledger/balance", headers=own))
        replies = [read_reply(connection) for connection in guessing]
        fresh = make_caller()
        answer(http.get("/v1/ledger/balance", headers={"x-api-key": fresh.key}))
    assert {status for status, _, _ in replies} == {401, 429}
    refused = [(headers, body) for status, headers, body in replies if status == 429]
    for headers, body in refused:
        assert json.loads(body)["code"] == "RATE_LIMITED"
        assert "retry-after" in headers


def test_limits_count_over_all_keys_of_an_owner(make_caller: MakeCaller, admin: Caller) -> None:
    """A key made to lift the limits does not lift them."""
    limited = make_caller(rateClass="standard")
    body = {"ownerDid": limited.did, "rateClass": "standard"}
    second = answer(admin.http.post("/v1/keys", json=body))
    bulk = {"workflows": [{"nodes": {}}]}
    path = "/v1/workflows/publish/bulk"
    statuses = [limited.http.post(path, json=bulk).status_code for _ in range(6)]
    own = {"x-api-key": second["key"]}
    statuses += [limited.http.post(path, json=bulk, headers=own).status_code for _ in range(5)]
    assert statuses == [200] * 10 + [429]


def test_a_spent_minute_is_refused_at_the_front_and_nothing_else_is(
    make_caller: MakeCaller, admin: Caller
) -> None:
    """HAProxy answers as the replica did, for this credential and class alone. Decision
    limits-and-admission."""
    spent = make_caller(rateClass="standard", rateLimits={"write": 2})
    dry_run = {"nodes": {"a": {"capabilityId": "cap.a.v1"}}, "dryRun": True}
    asked = {"x-request-id": 'an "id"'}
    replies = [spent.http.post("/v1/invoices", json={}, headers=asked) for _ in range(4)]
    assert [reply.status_code for reply in replies] == [400, 400, 429, 429]
    by_replica, by_front = replies[2:]
    assert ("server" in by_replica.headers, "server" in by_front.headers) == (True, False)
    for reply in replies[2:]:
        body = refusal(reply, 429, "RATE_LIMITED")
        assert body["requestId"] == reply.headers["x-request-id"] == asked["x-request-id"]
        assert "more than 2 write operations in a minute, again in " in body["detail"]
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        assert "x-callboard-spent" not in reply.headers
    told = ("ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")
    assert [by_front.headers[name] for name in told] == [by_replica.headers[name] for name in told]
    # The same caller's reads, what counts as a read or apart, and the owner's other key go on.
    assert spent.http.get("/v1/ledger/balance").status_code == 200
    assert spent.publish(dry_run).status_code == 200
    assert spent.http.post("/v1/workflows/publish/bulk", json={"workflows": []}).status_code != 429
    body = {"ownerDid": spent.did, "rateClass": "unlimited"}
    other = {"x-api-key": answer(admin.http.post("/v1/keys", json=body))["key"]}
    free = spent.http.post("/v1/invoices", json={}, headers=other)
    assert free.status_code == 400
    # However path and credential are spelt, they are the same.
    for path in ("/%761/invoices", "//v1/invoices", "/v1/%69nvoices"):
        reply = spent.http.post(str(spent.http.base_url).rstrip("/") + path, json={})
        assert (reply.status_code, "server" in reply.headers) == (429, False), path
    key = spent.http.headers["x-api-key"]
    reply = raw_reply(spent, f"GET /v1/agents/%zz HTTP/1.1\r\nhost: x\r\nx-api-key: {key}")
    assert reply.startswith(b"HTTP/1.1 404"), "reads are not spent"
    reply = raw_reply(
        spent, f"POST /v1/%zz HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nx-api-key: {key}"
    )
    assert reply.startswith(b"HTTP/1.1 429")
    assert b"\r\nserver:" not in reply
    del spent.http.headers["x-api-key"]
    for text in (f"Bearer {key}", f"Bearer   {key}", f"Bearer \t{key}", f"Bearer \t \t{key}"):
        reply = spent.http.post("/v1/invoices", json={}, headers={"authorization": text})
        assert (reply.status_code, "server" in reply.headers) == (429, False), text


def raw_reply(caller: Caller, head: str) -> bytes:
    """Return the reply to a request as it is spelt here, which clients would spell anew."""
    url = caller.http.base_url
    with socket.create_connection((url.host, url.port or 80), timeout=30) as line:
        line.sendall(f"{head}\r\nconnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: line.recv(65_536), b""))


def test_health_is_never_refused_for_being_asked_often(deployment: RunningDeployment) -> None:
    """Its state is known for a while: many questions in a row need but a few looks."""
    with client_from(deployment, "127.0.0.6") as http:
        wait(lambda: http.get("/health").status_code == 200, "a healthy service")
        statuses = {http.get("/health").status_code for _ in range(100)}
        statuses |= {http.get("/ready").status_code for _ in range(100)}
    assert statuses == {200}


def test_health_is_healthy_when_many_ask_at_once(
    deployment: RunningDeployment, anonymous: httpx.Client
) -> None:
    """Issue row 8: a look at the parts for each would keep the looks waiting for each other."""
    wait(lambda: anonymous.get("/health").status_code == 200, "a healthy service")
    head = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    with ExitStack() as stack:
        asking = [
            stack.enter_context(connection_from(deployment, f"127.0.0.{10 + number % 5}"))
            for number in range(1_000)
        ]
        for connection in asking:
            connection.sendall(head)
        statuses = Counter(read_reply(connection)[0] for connection in asking)
    assert statuses == {200: len(asking)}


def test_bodies_that_never_end_are_bounded_by_address_and_answered(
    deployment: RunningDeployment, payer: Caller
) -> None:
    """HAProxy holds what trickles in; beyond its buffer a body is the replica's, as few others."""
    head = (
        f"POST {RESULT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        "content-length: 400000\r\n\r\n["
    ).encode()
    with ExitStack() as stack:
        nameless, small, *large = [
            stack.enter_context(connection_from(deployment, "127.0.0.7")) for _ in range(102)
        ]
        nameless.sendall(head[:40])
        small.sendall(head)
        for connection in large:
            connection.sendall(head + b" " * 40_000)
        payer.balance()
        unnamed, held, *replies = [read_reply(one) for one in (nameless, small, *large)]
        payer.balance()
        assert nameless.recv(1) == b"", "the connection is closed"
    assert (unnamed[0], held[0]) == (408, 408)
    statuses = [status for status, _, _ in replies]
    assert set(statuses) == {408, 429}
    assert statuses.count(429) >= 30
    for status, headers, body in (held, *replies):
        code = "RATE_LIMITED" if status == 429 else "REQUEST_TIMEOUT"
        assert json.loads(body)["code"] == code
        assert ("retry-after" in headers) == (status == 429)
        assert headers["x-content-type-options"] == "nosniff"


def test_waiting_reads_of_one_owner_leave_places_to_others(
    deployment: RunningDeployment, payer: Caller, make_caller: MakeCaller, make_agent: MakeAgent
) -> None:
    agent = make_agent(is_held=True)
    workflow_id = answer(payer.publish(chain_of(agent.capability, "a")))["workflowId"]
    head = (
        f"GET /v1/workflows/{workflow_id} HTTP/1.1\r\nhost: x\r\nx-api-key: {payer.key}\r\n"
        "prefer: wait=50\r\n\r\n"
    )
    with ExitStack() as stack:
        waiting = [
            stack.enter_context(connection_from(deployment, "127.0.0.9")) for _ in range(260)
        ]
        for connection in waiting:
            connection.sendall(head.encode())
        other = make_caller()
        assert other.balance()["balance"] == 0
        refused = answered_first(waiting)
        status, headers, body = read_reply(refused)
        assert (status, json.loads(body)["code"]) == (429, "RATE_LIMITED")
        assert "retry-after" in headers
        agent.stub.gate.set()
        statuses = [read_reply(c)[0] for c in waiting if c is not refused]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 100


def test_a_get_with_a_large_body_is_refused_before_it_is_read(
    deployment: RunningDeployment,
) -> None:
    with client_from(deployment, "127.0.0.10") as http:
        response = http.request("GET", "/v1/agents", content=b" " * 100_000)
        refusal(response, 413, "PAYLOAD_TOO_LARGE")
        response = http.request("GET", "/v1/agents", content=(b" " for _ in range(3)))
        refusal(response, 400, "INVALID_REQUEST")


def test_a_list_ends_its_page_early_in_bytes_and_goes_on(
    make_caller: MakeCaller, anonymous: httpx.Client
) -> None:
    """Cards of 60 kB: a page of a hundred would have 6 MB."""
    owner = make_caller()
    capability = unique("cap.wide.") + ".v1"
    dids = sorted(unique("did:net:wide-") for _ in range(80))
    cards = [
        {
            "did": did,
            "endpoint": "http://127.0.0.1:9",
            "version": 1,
            "capabilities": [{"id": capability, "price_cents": 1}],
            "metadata": {"text": "x" * 60_000},
        }
        for did in dids
    ]
    for start in (0, 40):
        body = {"agents": [{"acard": card} for card in cards[start : start + 40]]}
        made = answer(owner.http.post("/v1/agents/register/bulk", json=body))
        assert all(result.get("ok") for result in made["results"]), made
    found: list[str] = []
    query = f"/v1/agents?limit=100&capabilityId={capability}"
    cursor = ""
    while True:
        response = anonymous.get(query + cursor)
        assert len(response.content) <= 4 * 1024 * 1024 + 1_000
        page = answer(response)
        found += [agent["did"] for agent in page["agents"]]
        if page["nextCursor"] is None:
            break
        cursor = f"&cursor={page['nextCursor']}"
    assert found == dids
    assert cursor, "it took more than one page"


def read_reply(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the reply on a connection."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(65_536)
        assert part, "the connection was closed without a reply"
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    while len(body) < int(headers["content-length"]):
        part = connection.recv(65_536)
        assert part, "the connection was closed within a reply"
        body += part
    return int(first.split()[1]), headers, body


def answered_first(connections: list[socket.socket]) -> socket.socket:
    """Return the connection on which a reply is there first."""
    ready, _, _ = select.select(connections, [], [], 120)
    assert ready, "no connection was answered"
    first: socket.socket = ready[0]
    return first
