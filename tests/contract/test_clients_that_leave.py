"""Clients that leave before their reply: what they asked for ends, and no place stays taken.

A replica sees the client of a wait, a read or an incomplete body leave, and ends it. What changes
something runs to its end whatever its client does: it keeps its place until then, and Serve does
not watch for its client. Decision fairness-and-long-work.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg
import pytest

from core.settings import Settings
from tests.contract.conftest import Caller, MakeAgent, MakeCaller, answer, chain_of, wait
from tests.contract.test_noisy_callers import answered_first, connection_from, read_reply
from tests.faults.victims import superuser_url
from tests.platform.deployments import RunningDeployment

RESULT, DEPOSIT = "/v1/workflows/nodeResult", "/v1/ledger/deposit"
# Also from a client: HAProxy takes it away, so that it keeps no wait.
UNWATCHED = "x-request-disconnect-disabled: ?1\r\n"
# So many places one holder has of a replica that no other uses.
PLACES = Settings().replica_requests_max // (Settings().share_of_free + 1)
WAITS = Settings().waits_max // (Settings().share_of_free + 1)
BODIES = Settings().bodies_max // (Settings().share_of_free + 1)
WAIT_S = 50


@contextmanager
def stopped_ledger(deployment: RunningDeployment) -> Iterator[None]:
    """Let nothing be committed within a block, which must be short."""
    with psycopg.connect(superuser_url(deployment)) as connection:
        connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        connection.execute("LOCK TABLE callboard.command IN SHARE ROW EXCLUSIVE MODE")
        yield


def connections(stack: ExitStack, deployment: RunningDeployment, count: int) -> list[socket.socket]:
    """Return connections that a replica has accepted; they end with the stack."""
    place = deployment.replica_place()
    found = [
        stack.enter_context(socket.create_connection(place, timeout=120)) for _ in range(count)
    ]
    for connection in found:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    # Else a request on a connection of HAProxy's, which is there already, may come before theirs.
    assert {read_reply(connection)[0] for connection in found} == {200}
    return found


def answered(connections: list[socket.socket]) -> list[socket.socket]:
    """Return the connections on which a reply, or the end, is there."""
    ready: list[socket.socket] = select.select(connections, [], [], 0)[0]
    return ready


def test_a_change_whose_client_left_is_made_and_then_its_place_is_free(
    deployment: RunningDeployment, make_caller: MakeCaller
) -> None:
    """At a replica, which hears of each client that leaves, with the header that HAProxy sets."""
    caller = make_caller(scopes=["ledger:read", "ledger:deposit"])
    head = f"POST {DEPOSIT} HTTP/1.1\r\nhost: x\r\nx-api-key: {caller.key}\r\n{UNWATCHED}"
    deposit = f'{head}content-length: 12\r\n\r\n{{"amount":1}}'.encode()
    caller.balance()  # the key is known from here on
    left, refused = PLACES - 10, 5
    with ExitStack() as staying:
        with stopped_ledger(deployment):
            with ExitStack() as leaving:
                for connection in connections(leaving, deployment, left):
                    connection.sendall(deposit)
                caller.balance()  # its turn comes after theirs: their bodies are read
            others = connections(staying, deployment, PLACES - left + refused)
            for connection in others:
                connection.sendall(deposit)
            # More of them if other holders have requests open: a share is of what is free.
            wait(lambda: len(answered(others)) >= refused, "those without a place to be refused")
        statuses = Counter(read_reply(connection)[0] for connection in others)
    assert statuses.keys() == {200, 429}
    assert statuses[429] >= refused
    wait(lambda: caller.balance()["balance"] == left + statuses[200], "every deposit")


def test_clients_that_leave_within_a_body_leave_no_place_taken(
    deployment: RunningDeployment,
) -> None:
    """Those that stay are answered at their deadline."""
    head = f"POST {RESULT} HTTP/1.1\r\nhost: x\r\ncontent-length: 400000\r\n{UNWATCHED}\r\n["
    incomplete = head.encode() + b" " * 40_000
    address = "127.0.0.11"
    with ExitStack() as stack:
        leaving = [
            stack.enter_context(connection_from(deployment, address)) for _ in range(2 * BODIES)
        ]
        for connection in leaving:
            connection.sendall(incomplete)
        assert read_reply(answered_first(leaving))[0] == 429
    with ExitStack() as stack:
        staying = [stack.enter_context(connection_from(deployment, address)) for _ in range(BODIES)]
        for connection in staying:
            connection.sendall(incomplete)
        assert {read_reply(connection)[0] for connection in staying} == {408}


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_clients_that_leave_a_wait_leave_its_place_at_once(
    deployment: RunningDeployment, payer: Caller, make_agent: MakeAgent, method: str
) -> None:
    """Whatever header they send: HAProxy takes it away."""
    agent = make_agent(is_held=True)
    manifest = chain_of(agent.capability, "a")
    known = path = f"/v1/workflows/{answer(payer.publish(manifest))['workflowId']}"
    text = b""
    if method == "POST":
        path, text = "/v1/workflows/publish", json.dumps(manifest).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {payer.key}\r\n{UNWATCHED}"
        f"prefer: wait={WAIT_S}\r\ncontent-length: {len(text)}\r\n\r\n"
    )
    began = time.monotonic()
    with ExitStack() as stack:
        leaving = [
            stack.enter_context(connection_from(deployment, "127.0.0.12")) for _ in range(WAITS + 5)
        ]
        for connection in leaving:
            connection.sendall(head.encode() + text)
        assert read_reply(answered_first(leaving))[0] == 429
    brief = {"prefer": "wait=1"}
    wait(lambda: payer.http.get(known, headers=brief).status_code == 200, "a place to wait in")
    assert time.monotonic() - began < WAIT_S
    agent.stub.gate.set()
