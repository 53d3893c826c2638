"""Odd values in every path parameter, query parameter and body member: refused, never a 5xx.

Goal: a caller chooses no text, number or type that breaks a request inside the service. Method: our
own OpenAPI document lists the operations; each of their inputs gets each odd value once, the other
inputs stay valid.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest

from core.trust.access import DEFAULT_SCOPES
from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    client,
    refusal,
    unique,
)
from tests.contract.test_execution_async import PATH as RESULTS
from tests.contract.test_execution_async import handed_in, later
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]
LONG: Final = "x" * 10_240
LONG_DID: Final = "did:net:" + LONG
EARLY: Final = "0001-01-01T00:00:00+14:00"
LATE: Final = "9999-12-31T23:59:59.999999Z"
LARGE_BYTES: Final = 10 * 1024 * 1024
# JSON texts. The first are refused for any member alike, so one member of an operation tells.
REFUSED: Final = (
    r'"a\u0000b"',
    r'"a\ud800b"',
    r'"a\udfffb"',
    "1e400",
    "-1e400",
    "NaN",
    "[" * 64 + "]" * 64,
    '{"a":' * 64 + "1" + "}" * 64,
)
# What is read by the kind of a member: one member of each schema tells.
OF_A_KIND: Final = (
    "9" * 400,
    "9" * 128,
    "-9223372036854775809",
    "2.5",
    "-0.0",
    "0." + "0" * 300 + "1",
    '"\\u00a0\\u2028\\u202e\\ufeff\\te' + "\\u0301" * 300 + '"',
    "null",
    '{"__proto__":{"a":1},"constructor":1,"":1}',
    '{"a":1,"a":[2],"a":{"b":3}}',
)
FRAGMENTS: Final = (
    json.dumps(LONG),
    json.dumps(LONG_DID),
    json.dumps(EARLY),
    json.dumps(LATE),
    "[]",
    "{}",
    "true",
    "-1",
    "1e308",
    str(2**63),
    str(2**64),
)
IN_PATH: Final = (
    *("%00", "a%00b", "%ED%A0%80", "%FF", LONG, LONG_DID, "%F0%9F%98%80"),
    *("%25", "%2E%2E", "9" * 40, str(2**63)),
)
IN_QUERY: Final = (*IN_PATH[:4], LONG[:4_000], quote(EARLY), "-1", str(2**63), "9" * 400, "[]", "")
OF_A_KIND_IN_QUERY: Final = (
    *("1e400", "9" * 60, str(2**64), "1e3", "1.0", "0x10", "%2B1", "%D9%A3", "01", "NaN"),
)
# A member that stands for the odd value until the body is text.
_PLACE: Final = "odd-value-stands-here"
SENDERS: Final = 4
_UNTRIED: Final = ("/health", "/ready", "/openapi.json", "/docs")


@dataclass(frozen=True)
class Request:
    """One odd request: what is odd in it, how it is sent, and whether it may be accepted."""

    odd: str
    method: str
    url: str
    body: bytes | None
    is_refused: bool = False

    def sent_by(self, http: httpx.Client) -> str | None:
        """Send it and say what is wrong with the answer, None where nothing is."""
        headers = {"content-type": "application/json"} if self.body is not None else {}
        response = http.request(self.method, self.url, content=self.body, headers=headers)
        if (400 if self.is_refused else 200) <= response.status_code < 500:
            return None
        return f"{self.method} {self.odd}: {response.status_code} {response.text[:300]}"


class Requests:
    """Every odd request that a description leads to.

    Args:
        document: the OpenAPI document.
        known: valid values of inputs, by name.
        bodies: whole valid bodies, by path, where an example with known values is not enough.
    """

    def __init__(self, document: Json, known: Json, bodies: dict[str, Json]) -> None:
        self._document = document
        self._known = known
        self._bodies = bodies
        self._kinds: set[str] = set()

    def __iter__(self) -> Iterator[Request]:
        for path, methods in self._document["paths"].items():
            if path in _UNTRIED:
                continue
            for method, operation in methods.items():
                parameters = [self._resolved(item) for item in operation["parameters"]]
                media = operation.get("requestBody", {}).get("content", {}).get("application/json")
                yield from self._of_parameters(method.upper(), path, parameters, media)
                if media is not None:
                    yield from self._of_body(method.upper(), path, media)

    def _of_parameters(
        self, method: str, path: str, parameters: list[Json], media: Json | None
    ) -> Iterator[Request]:
        body = None if media is None else json.dumps(self._valid(media["example"])).encode()
        for parameter in parameters:
            name, place = parameter["name"], parameter["in"]
            if place == "path":
                for value in IN_PATH:
                    url = self._url(path, **{name: value})
                    yield Request(f"{path} {name}={value[:30]}", method, url, body)
            elif place == "query":
                is_new = self._is_new(parameter["schema"])
                for value in (*IN_QUERY, *(OF_A_KIND_IN_QUERY if is_new else ())):
                    url = f"{self._url(path)}?{name}={value}"
                    yield Request(f"{path}?{name}={value[:30]}", method, url, body)

    def _of_body(self, method: str, path: str, media: Json) -> Iterator[Request]:
        example = self._bodies.get(path) or self._valid(media["example"])
        # What is wrong with an item of a bulk concerns that item alone.
        is_refused = not path.endswith("/bulk")
        for position, (where, body, schema) in enumerate(
            _replaced(example, self._resolved(media["schema"]))
        ):
            text, url = json.dumps(body), self._url(path)
            more = OF_A_KIND if self._is_new(schema) else ()
            for fragment in (*(() if position else REFUSED), *FRAGMENTS, *more):
                odd = text.replace(f'"{_PLACE}"', fragment).encode()
                told = f"{path} {where}={fragment[:30]}"
                yield Request(told, method, url, odd, is_refused and fragment in REFUSED)
        for whole in ("[]", "null", '"text"', "1", "true"):
            yield Request(f"{path} $={whole}", method, self._url(path), whole.encode())

    def _is_new(self, schema: Json) -> bool:
        """Say whether no input of this schema came before."""
        plain = {**self._resolved(schema), "description": ""}
        kind = json.dumps(plain, sort_keys=True)
        is_new = kind not in self._kinds
        self._kinds.add(kind)
        return is_new

    def _url(self, path: str, **odd: str) -> str:
        parts = []
        for part in path.split("/"):
            name = part.strip("{}")
            parts.append(odd.get(name, self._known.get(name, "x")) if part != name else part)
        return "/".join(parts)

    def _resolved(self, item: Json) -> Json:
        while "$ref" in item:
            found: Any = self._document
            for step in item["$ref"].removeprefix("#/").split("/"):
                found = found[step]
            item = found
        return item

    def _valid(self, example: Any) -> Any:
        """Return an example whose ids are those of the scene."""
        if isinstance(example, dict):
            return {
                name: self._known.get(name, self._valid(value)) if isinstance(value, str) else
                self._valid(value)
                for name, value in example.items()
            }  # fmt: skip
        return [self._valid(item) for item in example] if isinstance(example, list) else example


def _replaced(example: Any, schema: Json, where: str = "$") -> Iterator[tuple[str, Any, Json]]:
    """Return an example once for each of its members, and each that its schema names besides, with
    the place of the odd value in that member's stead, and the member's schema."""
    if isinstance(example, dict):
        known = schema.get("properties", {})
        for name in {**known, **example}:
            yield f"{where}.{name}", {**example, name: _PLACE}, known.get(name, {})
        for name, value in example.items():
            for path, changed, of in _replaced(value, known.get(name, {}), f"{where}.{name}"):
                yield path, {**example, name: changed}, of
    elif isinstance(example, list) and example:
        items = schema.get("items", {})
        yield f"{where}[0]", [_PLACE, *example[1:]], items
        for path, changed, of in _replaced(example[0], items, f"{where}[0]"):
            yield path, [changed, *example[1:]], of


@pytest.fixture(scope="module")
def tester(make_caller: MakeCaller) -> Caller:
    """An administrator of its own, whom no permission keeps from the inside of a handler."""
    return make_caller(100, scopes=["admin", "ledger:deposit", *DEFAULT_SCOPES])


def test_no_odd_value_is_a_5xx(
    deployment: RunningDeployment, tester: Caller, anonymous: httpx.Client, make_agent: MakeAgent
) -> None:
    agent = make_agent(owner=tester)
    record = tester.run(chain_of(agent.capability, "a"))
    ids = {
        "workflow_id": record["id"],
        "workflowId": record["id"],
        "task_id": record["taskId"],
        "node": "a",
        "nodeId": "a",
        "key_id": unique("k"),
        "capability_id": agent.capability,
        "agentDid": agent.did,
        "ownerDid": tester.did,
        "payerDid": tester.did,
        "did": unique("did:net:odd-"),
        "invoice_id": str(uuid.uuid4()),
        "dispute_id": str(uuid.uuid4()),
        "audit_id": "1",
    }
    # Odd members of a result are looked at when its token is good.
    held = make_agent(later, owner=tester)
    answer(tester.publish(chain_of(held.capability, "a")))
    held.stub.wait_dispatched()
    bodies = {RESULTS: {**handed_in(held.stub.dispatches[0]), "metrics": {"latency_ms": 1}}}
    requests = list(Requests(answer(anonymous.get("/openapi.json")), ids, bodies))
    assert len(requests) > 1_000 and sum(one.is_refused for one in requests) > 300
    # As many as searches of one caller may wait, and one that runs. Each has a client of its own: a
    # pool that threads share closes an old connection that another thread has just been given.
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(SENDERS))
        free: SimpleQueue[httpx.Client] = SimpleQueue()
        for _ in range(SENDERS):
            free.put(stack.enter_context(client(deployment.url, tester.key)))

        def send(one: Request) -> str | None:
            http = free.get()
            try:
                return one.sent_by(http)
            finally:
                free.put(http)

        wrong = [said for said in pool.map(send, requests) if said]
    assert not wrong, f"{len(wrong)} of {len(requests)}:\n" + "\n".join(wrong[:40])
    # What was sent has not hurt the service: it still stores what another asks for.
    answer(tester.http.post("/v1/ledger/deposit", json={"amount": 1}))


def test_a_body_of_10_mb_is_refused_by_every_operation(
    anonymous: httpx.Client, tester: Caller
) -> None:
    """A text as large in each body; one of a bulk is within its bound, and refused as a member."""
    text = b'{"a":"' + b"x" * LARGE_BYTES + b'"}'
    headers = {"content-type": "application/json"}
    for path, methods in answer(anonymous.get("/openapi.json"))["paths"].items():
        for method, operation in methods.items():
            if "application/json" in operation.get("requestBody", {}).get("content", {}):
                url = re.sub(r"\{\w+\}", "a", path)
                response = tester.http.request(method, url, content=text, headers=headers)
                assert 400 <= response.status_code < 500, f"{method} {path}: {response.text[:500]}"


@pytest.mark.parametrize("key_id", ["%00", "a%00b", "%ED%A0%80"])
def test_a_key_id_that_no_database_keeps_is_400(payer: Caller, key_id: str) -> None:
    refusal(payer.http.delete(f"/v1/keys/{key_id}"), 400, "INVALID_REQUEST")
    answer(payer.http.get("/v1/ledger/balance"))


@pytest.mark.parametrize("did", ["did:net:" + "x" * 6_000, "did:net:a b", "did:net", "did:a:\x7f"])
def test_a_dispute_about_an_invalid_did_is_400(payer: Caller, did: str) -> None:
    body = {"disputeType": "fraud", "description": "a long story", "respondentDid": did}
    problem = refusal(payer.http.post("/v1/disputes", json=body), 400, "INVALID_REQUEST")
    assert problem["errors"][0]["path"] == "respondentDid"


def test_a_query_that_is_no_text_is_400(payer: Caller) -> None:
    for query in ("eventType=%00", "eventType=%FF", "cursor=AGEA", f"startTime={quote(EARLY)}"):
        refusal(payer.http.get(f"/v1/audit?{query}"), 400, "INVALID_REQUEST")
    refusal(payer.http.get("/v1/audit?eventType=" + "x" * 9_000), 400, "INVALID_REQUEST")


def test_dids_of_256_characters_are_taken_and_longer_ones_are_not(admin: Caller) -> None:
    did = unique("did:net:")
    did += "x" * (256 - len(did))
    assert answer(admin.http.post("/v1/keys", json={"ownerDid": did}))["ownerDid"] == did
    answer(admin.http.post(f"/v1/quotas/{did}", json={"maxWorkflowsPerDay": 1}))
    body = {"disputeType": "fraud", "description": "a long story", "respondentDid": did}
    answer(admin.http.post("/v1/disputes", json=body))
    refusal(admin.http.post("/v1/keys", json={"ownerDid": did + "x"}), 400, "INVALID_REQUEST")


def test_one_tenants_idempotency_key_is_not_anothers(make_caller: MakeCaller) -> None:
    """A DID and a key written one after the other read alike for two tenants."""
    name = unique("did:web:")
    scopes = ["ledger:deposit", *DEFAULT_SCOPES]
    one = make_caller(ownerDid=name, scopes=scopes)
    other = make_caller(ownerDid=f"{name}:alice", scopes=scopes)
    for number, (path, body) in enumerate(
        (
            ("/v1/ledger/deposit", {"amount": 5}),
            ("/v1/workflows/publish", {"nodes": {"a": {"capabilityId": "cap.a.v1"}}}),
            ("/v1/keys", {}),
        )
    ):
        key = f"k{number}"
        first = one.http.post(path, json=body, headers={"Idempotency-Key": f"alice:{key}"})
        second = other.http.post(path, json=body, headers={"Idempotency-Key": key})
        assert first.status_code == second.status_code == 200, (first.text, second.text)
        assert "idempotency-replayed" not in second.headers
        assert first.json()["id"] != second.json()["id"]


@pytest.mark.parametrize(
    ("changes", "member"),
    [
        ({"notes": "x" * 66_000}, "acard"),
        ({"capabilities": [{"id": f"cap.n{n}.v1"} for n in range(101)]}, "acard.capabilities"),
        ({"metadata": {"name": "x" * 513}}, "acard.metadata.name"),
        ({"version": 2**53}, "acard.version"),
        ({"did": "did:net:" + "x" * 249}, "acard.did"),
    ],
)
def test_a_card_beyond_its_bounds_is_400(admin: Caller, changes: Json, member: str) -> None:
    card = {
        "did": unique("did:net:big-"),
        "endpoint": "http://127.0.0.1:9",
        "version": 1,
        "capabilities": [{"id": "cap.big.v1"}],
        **changes,
    }
    response = admin.http.post("/v1/agents/register", json={"acard": card})
    assert refusal(response, 400, "INVALID_REQUEST")["errors"][0]["path"] == member
    found = answer(admin.http.post("/v1/agents/register/bulk", json={"agents": [{"acard": card}]}))
    assert found["results"][0]["code"] == "INVALID_REQUEST"


def test_an_odd_item_of_a_bulk_refuses_itself_alone(payer: Caller, admin: Caller) -> None:
    good = json.dumps({"nodes": {"a": {"capabilityId": "cap.a.v1"}}, "dryRun": True})
    odd = (r'{"intent": "a\ud800"}', r'{"intent": "a\u0000"}', '{"intent": 1e400}', '{"a": nope}')
    items = [json.dumps({"intent": "x" * 600_000}), "[" * 70 + "]" * 70, *odd]
    body = "".join(f"{item}, {good}, " for item in items).removesuffix(", ")
    response = payer.http.post(
        "/v1/workflows/publish/bulk",
        content=f'{{"workflows": [{body}]}}'.encode(),
        headers={"content-type": "application/json"},
    )
    results = answer(response)["results"]
    assert [result["status"] for result in results[1::2]] == [results[1]["status"]] * len(items)
    assert [result["code"] for result in results[0::2]] == [
        "PAYLOAD_TOO_LARGE",
        *["INVALID_REQUEST"] * (len(items) - 1),
    ]
