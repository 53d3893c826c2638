"""Streams of audit entries over HTTP: order, resumption, ends, filters, and who is shown what.

Reference: features.md (Streams).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from callboard.client import AsyncClient, Client
from callboard.errors import AuthenticationError, NotFound
from serve_app.callers.admission import EVENT_STREAMS_MAX, EVENT_STREAMS_PART
from serve_app.operations.streams.event_tail import COMMENT_S
from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    client,
    refusal,
    wait,
)
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]
EVENTS = "/v1/events/stream"


class Stream:
    """One connection of a stream; `events` are those so far: id, type, record."""

    def __init__(self, response: httpx.Response) -> None:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["x-accel-buffering"] == "no"
        self._parts = response.iter_bytes()
        self._text = b""
        self.events: list[tuple[int, str, Json]] = []
        self.head = self._read_block()

    @property
    def ids(self) -> list[int]:
        return [number for number, _, _ in self.events]

    def read(self, count: int) -> list[int]:
        """Return the ids once there are so many events."""
        while len(self.events) < count:
            self._read_block()
        return self.ids

    def read_all(self) -> list[int]:
        """Return the ids once the stream has ended."""
        while self._read_block():
            pass
        assert not self._text
        return self.ids

    def _read_block(self) -> str:
        while b"\n\n" not in self._text:
            try:
                self._text += next(self._parts)
            except StopIteration:
                return ""
        block, _, self._text = self._text.partition(b"\n\n")
        text = block.decode()
        members = dict(line.split(": ", 1) for line in text.split("\n") if line != ":")
        if "data" in members:
            assert list(members) == ["id", "event", "data"]
            record = json.loads(members["data"])
            assert (record["id"], record["eventType"]) == (int(members["id"]), members["event"])
            self.events.append((record["id"], record["eventType"], record))
        return text


@contextmanager
def streaming(
    caller: Caller, path: str, after: int | None = None, **query: Any
) -> Iterator[Stream]:
    headers = {} if after is None else {"last-event-id": str(after)}
    with caller.http.stream("GET", path, params=query, headers=headers) as response:
        yield Stream(response)


def entries_of(caller: Caller, workflow_id: str) -> list[Json]:
    """Return the audit entries of a workflow that the caller is shown whole, in order."""
    query = {"targetType": "workflow", "targetId": workflow_id}
    return answer(caller.http.get("/v1/audit", params=query))["entries"][::-1]


def stream_of(workflow_id: str) -> str:
    return f"/v1/workflows/{workflow_id}/stream"


def test_a_workflows_stream_shows_its_entries_and_ends_with_it(
    payer: Caller, admin: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(is_held=True)
    workflow_id = answer(payer.publish(chain_of(agent.capability)))["workflowId"]
    path = stream_of(workflow_id)
    with (
        streaming(payer, path) as stream,
        streaming(admin, path) as others,
        streaming(payer, path, after=2**63 - 1) as ahead,
    ):
        assert stream.head == ": callboard\nretry: 1000\nid: 0"
        stream.read(1)
        agent.stub.gate.set()
        ids = stream.read_all()
        assert others.read_all() == ids
        later = ahead.read_all()
        assert later and later == ids[-len(later) :]
    assert ids == sorted(set(ids))
    assert [record for _, _, record in stream.events] == entries_of(payer, workflow_id)
    for number, _, record in stream.events:
        assert answer(payer.http.get(f"/v1/audit/{number}")) == record
    assert stream.events[0][1] == "workflow.published"
    ended = [event["type"] for event in stream.events[-1][2]["payload"]["events"]]
    assert "workflow.finished" in ended
    for count, after in enumerate(ids[:-1], 1):
        with streaming(payer, path, after=after) as rest:
            assert rest.read_all() == ids[count:]
    with streaming(payer, path, lastEventId=ids[0]) as rest:
        assert rest.read_all() == ids[1:]
    with streaming(payer, path, after=ids[1], lastEventId=ids[0]) as rest:
        assert rest.read_all() == ids[2:]
    for after in (ids[-1], ids[-1] + 1, 2**63 - 1):
        response = payer.http.get(path, headers={"last-event-id": str(after)})
        assert (response.status_code, response.content) == (204, b"")
        assert "content-length" not in response.headers


def test_a_cancelled_workflows_stream_ends(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent(is_held=True)
    workflow_id = answer(payer.publish(chain_of(agent.capability)))["workflowId"]
    with streaming(payer, stream_of(workflow_id)) as stream:
        stream.read(1)
        answer(payer.cancel(f"/v1/workflows/{workflow_id}"))
        stream.read_all()
    assert "workflow.cancelled" in str(stream.events[-1][2]["payload"])


def test_an_agent_is_shown_its_own_entries_and_others_nothing(
    deployment: RunningDeployment, payer: Caller, admin: Caller, make_agent: MakeAgent,
    make_caller: MakeCaller,
) -> None:  # fmt: skip
    first, second = make_agent(), make_agent(is_held=True)
    manifest = chain_of(first.capability, "ab")
    manifest["nodes"]["b"]["capabilityId"] = second.capability
    workflow_id = answer(payer.publish(manifest))["workflowId"]
    key = answer(admin.http.post("/v1/keys", json={"ownerDid": first.did}))["key"]
    with client(deployment.url, key) as http:
        agent = Caller(first.did, key, "", http)
        second.stub.wait_dispatched()
        with streaming(agent, stream_of(workflow_id)) as stream:
            second.stub.gate.set()
            own = stream.read_all()
        assert own == [entry["id"] for entry in entries_of(agent, workflow_id)]
        assert 0 < len(own) < len(entries_of(payer, workflow_id))
        with Client(deployment.url, key) as reader:
            assert [one.id for one in reader.stream(workflow_id)] == own
    refusal(make_caller().http.get(stream_of(workflow_id)), 404, "NOT_FOUND")
    unknown = "0199c0de-0000-7000-8000-000000000001"
    refusal(payer.http.get(stream_of(unknown)), 404, "NOT_FOUND")


def test_events_are_those_of_the_caller_from_new_ones_on(
    payer: Caller, make_caller: MakeCaller, make_agent: MakeAgent
) -> None:
    other, agent = make_caller(10), make_agent()
    before = payer.run(chain_of(agent.capability, "a"))["id"]
    with streaming(payer, EVENTS) as stream:
        others, own = (one.run(chain_of(agent.capability, "a"))["id"] for one in (other, payer))
        expected = [entry["id"] for entry in entries_of(payer, own)]
        assert stream.read(len(expected)) == expected
    begins = int(stream.head.rpartition(" ")[2])
    assert entries_of(payer, before)[-1]["id"] <= begins < expected[0]
    with streaming(payer, EVENTS, after=0) as stream:
        while expected[-1] not in stream.ids:
            stream.read(len(stream.events) + 1)
    assert stream.ids == sorted({*stream.ids})
    hidden = {entry["id"] for entry in entries_of(other, others)}
    assert hidden and not hidden & {*stream.ids}
    assert {entry["id"] for entry in entries_of(payer, before)} < {*stream.ids}
    for number, _, record in stream.events:
        assert answer(payer.http.get(f"/v1/audit/{number}")) == record


def test_events_are_filtered_by_types_and_by_workflow(payer: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent()
    workflows = [payer.run(chain_of(agent.capability, "ab"))["id"] for _ in range(2)]
    types = {"payment.settled", "escrow.held"}
    query = {"eventType": ",".join(types), "workflowId": workflows[1].upper()}
    expected = [
        entry["id"]
        for entry in entries_of(payer, workflows[1])
        if types & {event["type"] for event in entry["payload"]["events"]}
    ]
    with streaming(payer, EVENTS, after=0, **query) as stream:
        assert stream.read(len(expected)) == expected
    assert "escrow.held" not in {kind for _, kind, _ in stream.events}, "first events differ"


@pytest.mark.parametrize(
    ("query", "header"),
    [
        ({"eventType": "node.exploded"}, None),
        ({"eventType": "node.failed,"}, None),
        ({"eventType": ""}, None),
        ({"eventType": "node.failed, node.succeeded"}, None),
        ({"workflowId": "x"}, None),
        ({"lastEventId": "-1"}, None),
        ({"lastEventId": str(2**63)}, None),
        ({"lastEventId": "1\0"}, None),
        ({}, b"one"),
        ({}, b""),
        ({}, b"9" * 5_000),
        ({}, "\u0661".encode()),
    ],
)
def test_bad_parameters_are_refused(payer: Caller, query: Json, header: bytes | None) -> None:
    headers = {} if header is None else {b"last-event-id": header}
    refusal(payer.http.get(EVENTS, params=query, headers=headers), 400, "INVALID_REQUEST")


def test_a_right_to_all_entries_shows_all_and_its_use_is_recorded(
    payer: Caller, make_caller: MakeCaller, make_agent: MakeAgent
) -> None:
    auditor, agent = make_caller(scopes=["audit:read", "audit:all"]), make_agent()
    with streaming(auditor, EVENTS) as stream:
        workflow_id = payer.run(chain_of(agent.capability, "a"))["id"]
        expected = {entry["id"] for entry in entries_of(payer, workflow_id)}
        used = False
        while not used or not expected <= {*stream.ids}:
            stream.read(len(stream.events) + 1)
            *_, (_, kind, record) = stream.events
            used = used or (kind == "right.used" and record["actorDid"] == auditor.did)
    assert stream.ids == [*range(stream.ids[0], stream.ids[-1] + 1)], "every entry, in order"


def test_a_revoked_key_ends_its_stream(payer: Caller, admin: Caller) -> None:
    with streaming(payer, EVENTS) as stream:
        answer(admin.http.request("DELETE", f"/v1/keys/{payer.key_id}"))
        wait(lambda: payer.http.get("/v1/keys").status_code == 401, "the key's end")
        began = time.monotonic()
        while time.monotonic() - began < 2.0:  # more than a second between two checks
            answer(admin.http.post("/v1/ledger/deposit", json={"ownerDid": payer.did, "amount": 1}))
        shown = stream.read_all()
    newest = answer(admin.http.get("/v1/audit", params={"limit": 1}))["entries"][0]["id"]
    assert newest not in shown
    refusal(payer.http.get(EVENTS), 401, "UNAUTHORIZED")


def test_open_streams_are_bounded_and_one_that_its_reader_leaves_is_free_at_once(
    deployment: RunningDeployment, make_caller: MakeCaller
) -> None:
    """At one replica, and through HAProxy, before a comment would show that the reader is gone."""
    caller, most = make_caller(), (EVENT_STREAMS_MAX + 1) // (EVENT_STREAMS_PART + 1)
    host, port = deployment.replica_place()
    for url in (f"http://{host}:{port}", deployment.url):
        began = time.monotonic()
        with httpx.Client(base_url=url, headers={"x-api-key": caller.key}, timeout=60) as http:
            with ExitStack() as stack:
                opened: list[httpx.Response] = []
                while not opened or opened[-1].status_code == 200:
                    opened.append(stack.enter_context(http.stream("GET", EVENTS)))
                assert opened[-1].status_code == 429
                assert b"too many event streams are open" in opened[-1].read()
                assert len(opened) - 1 == most if url != deployment.url else len(opened) > most
                assert http.get("/v1/keys").status_code == 200

            def is_open() -> bool:
                with http.stream("GET", EVENTS) as response:
                    return response.status_code == 200

            wait(is_open, "a place")
        assert time.monotonic() - began < COMMENT_S


def test_a_head_request_opens_no_stream(payer: Caller) -> None:
    response = payer.http.head(EVENTS)
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-type"] == "text/event-stream"


def test_the_client_iterates_over_a_workflow_and_over_events(
    deployment: RunningDeployment, payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    with Client(deployment.url, payer.key) as reader:
        workflow_id = reader.publish(chain_of(agent.capability)).workflow_id
        ids = [entry.id for entry in reader.stream(workflow_id)]
        assert ids == [entry["id"] for entry in entries_of(payer, workflow_id)]
        assert [one.id for one in reader.stream(workflow_id, last_event_id=ids[1])] == ids[2:]
        events = reader.events(workflow_id=workflow_id, last_event_id=0)
        assert [next(events).id for _ in ids] == ids
        with pytest.raises(NotFound):
            next(reader.stream("0199c0de-0000-7000-8000-000000000001"))
    with Client(deployment.url, "cb_wrong") as stranger, pytest.raises(AuthenticationError):
        next(stranger.events())


async def test_the_asynchronous_client_iterates_too(
    deployment: RunningDeployment, payer: Caller, make_agent: MakeAgent
) -> None:
    workflow_id = payer.run(chain_of(make_agent().capability))["id"]
    async with AsyncClient(deployment.url, payer.key) as reader:
        ids = [entry.id async for entry in reader.stream(workflow_id)]
    assert ids == [entry["id"] for entry in entries_of(payer, workflow_id)]
