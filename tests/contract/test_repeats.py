"""`Idempotency-Key` on every POST that changes something, row by row.

Spec: contract.md section 2 (Idempotency-Key); docs/decisions/0014.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from serve_app.api import all_operations
from serve_app.calls import Repeats
from tests.contract.conftest import Caller, MakeAgent, answer, chain_of, refusal, unique

Json = dict[str, Any]


@dataclass
class Scene:
    """Somebody who may do everything here, an agent that answers, and one that never does."""

    http: httpx.Client
    agent: str
    held: str
    stub: Any
    seen: list[Json] = field(default_factory=list)

    def held_workflow(self) -> str:
        """Publish a workflow that stays open and return its id."""
        manifest = {"nodes": {"a": {"capabilityId": self.held}}}
        return str(answer(self.http.post("/v1/workflows/publish", json=manifest))["workflowId"])


Request = tuple[str, Json, Json]


def publish(scene: Scene) -> Request:
    one, other = (chain_of(scene.agent, names) for names in ("ab", "abc"))
    return "/v1/workflows/publish", one, other


def publish_list_form(scene: Scene) -> Request:
    one = {"nodes": [{"id": "a", "capability": scene.agent}], "edges": []}
    return "/v1/workflows", one, {**one, "maxCents": 500}


def publish_bulk(scene: Scene) -> Request:
    # The reply holds ids and a problem with the first request's id: both come again.
    workflows = [chain_of(scene.agent, "a"), {"nodes": {}}, chain_of(scene.agent, "ab")]
    return "/v1/workflows/publish/bulk", {"workflows": workflows}, {"workflows": workflows[:1]}


def cancel(scene: Scene) -> Request:
    path = f"/v1/workflows/{scene.held_workflow()}/cancel"
    return path, {"reason": "user_request"}, {"reason": "error"}


def node_result(scene: Scene) -> Request:
    workflow_id = scene.held_workflow()
    scene.stub.wait_dispatched()
    (dispatch,) = (row for row in scene.stub.dispatches if row["workflowId"] == workflow_id)
    ids = {name: dispatch[name] for name in ("workflowId", "nodeId", "resultId")}
    # A failure: without a key, the same again is refused as ALREADY_SETTLED.
    one = {**ids, "status": "error", "error": "not today", "code": "BUSY"}
    return "/v1/workflows/nodeResult", one, {**ids, "status": "success", "result": {}}


def card(did: str, version: int = 1) -> Json:
    return {
        "did": did,
        "endpoint": "http://127.0.0.1:9",
        "version": version,
        "capabilities": [{"id": "cap.repeats.v1", "description": "A test's"}],
    }


def register(scene: Scene) -> Request:
    did = unique("did:net:agent-")
    return "/v1/agents/register", {"acard": card(did)}, {"acard": card(did, 2)}


def register_flat(scene: Scene) -> Request:
    did = unique("did:net:agent-")
    return "/v1/agent/register", card(did), card(did, 2)


def register_bulk(scene: Scene) -> Request:
    dids = [unique("did:net:agent-") for _ in range(2)]
    one = {"agents": [{"acard": card(did)} for did in dids]}
    return "/v1/agents/register/bulk", one, {"agents": [{"acard": card(dids[0], 2)}]}


def make_key(scene: Scene) -> Request:
    owner = unique("did:net:k-")
    return "/v1/keys", {"ownerDid": owner}, {"ownerDid": owner, "name": "another"}


def deposit(scene: Scene) -> Request:
    return "/v1/ledger/deposit", {"amount": 1}, {"amount": 2}


POSTS: tuple[Callable[[Scene], Request], ...] = (
    publish, publish_list_form, publish_bulk, cancel, node_result, register, register_flat,
    register_bulk, make_key, deposit,
)  # fmt: skip


@pytest.fixture
def scene(admin: Caller, make_agent: MakeAgent) -> Scene:
    held = make_agent(lambda _: (202, {"ok": True}))
    answer(admin.http.post("/v1/ledger/deposit", json={"amount": 10}))
    return Scene(admin.http, make_agent().capability, held.capability, held.stub)


@pytest.mark.parametrize("request_of", POSTS, ids=lambda item: item.__name__)
def test_a_post_with_a_key_happens_once(
    scene: Scene, request_of: Callable[[Scene], Request]
) -> None:
    path, body, other = request_of(scene)
    headers = {"Idempotency-Key": unique("k")}
    first = scene.http.post(path, json=body, headers=headers)
    answer(first)
    last = answer(scene.http.get("/v1/audit?limit=1"))["entries"][0]["id"]
    again = scene.http.post(path, json=body, headers=headers)
    assert answer(again) == answer(first)
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    refusal(scene.http.post(path, json=other, headers=headers), 409, "KEY_REUSED")
    actor = answer(scene.http.get("/v1/ledger/balance"))["ownerDid"]
    news = answer(scene.http.get(f"/v1/audit?limit=20&actorDid={actor}"))["entries"]
    assert all(entry["id"] <= last for entry in news), "neither a repeat nor a refusal did anything"


def test_every_state_changing_post_is_tried_here(scene: Scene) -> None:
    declared = {
        operation.path
        for operation in all_operations()
        if operation.method == "POST" and operation.repeats is not Repeats.IGNORED
    }
    tried = {request_of(scene)[0] for request_of in POSTS}
    tried = {"/v1/workflows/{workflow_id}/cancel" if "/cancel" in path else path for path in tried}
    assert tried == declared


def test_a_key_of_one_path_is_refused_on_another(scene: Scene) -> None:
    headers = {"Idempotency-Key": unique("k")}
    paths = [f"/v1/workflows/{scene.held_workflow()}/cancel" for _ in range(2)]
    answer(scene.http.post(paths[0], headers=headers))
    refusal(scene.http.post(paths[1], headers=headers), 409, "KEY_REUSED")
    answer(scene.http.post(paths[1], headers={"Idempotency-Key": unique("k")}))


def test_a_refused_request_is_not_stored_under_its_key(scene: Scene) -> None:
    headers = {"Idempotency-Key": unique("k")}
    refusal(scene.http.post("/v1/keys", json={"name": 3}, headers=headers), 400, "INVALID_REQUEST")
    answer(scene.http.post("/v1/keys", json={"name": "three"}, headers=headers))


def test_a_repeated_key_request_shows_the_one_key_it_made(scene: Scene) -> None:
    headers = {"Idempotency-Key": unique("k")}
    body = {"ownerDid": unique("did:net:k-")}
    first, again = (scene.http.post("/v1/keys", json=body, headers=headers) for _ in range(2))
    key = answer(again)["key"]
    assert key == answer(first)["key"]
    assert again.headers["cache-control"] == "no-store"
    answer(scene.http.get("/v1/ledger/balance", headers={"x-api-key": key}))
    listed = answer(scene.http.get(f"/v1/keys?ownerDid={body['ownerDid']}"))["keys"]
    assert len(listed) == 1


def test_posts_that_store_nothing_ignore_the_key(scene: Scene) -> None:
    headers = {"Idempotency-Key": unique("k")}
    for names in ("a", "ab"):
        dry = {**chain_of(scene.agent, names), "dryRun": True}
        reply = scene.http.post("/v1/workflows/publish", json=dry, headers=headers)
        assert list(answer(reply)["candidates"]) == list(names)
        assert "idempotency-replayed" not in reply.headers
