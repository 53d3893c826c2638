"""`Idempotency-Key` on every POST that changes something, row by row.

Spec: decision idempotent-requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from nacl.signing import SigningKey

from serve_app.api import all_operations
from serve_app.http.calls import Repeats
from tests.contract.conftest import (
    Caller,
    Damage,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    refusal,
    unique,
    wait,
)
from tests.contract.test_agents import did_of_key
from tests.contract.test_key_rotation import public
from tests.contract.test_key_rotation import request as rotation

Json = dict[str, Any]
WHY = {"reason": "user_request"}


@dataclass
class Scene:
    """A caller who may do everything here, an agent that answers, and one that never does."""

    http: httpx.Client
    agent: str
    held: str
    did: str
    stub: Any
    damage: Damage
    seen: list[Json] = field(default_factory=list)

    def held_workflow(self) -> str:
        """Publish a workflow that stays open and return its id."""
        manifest = {"nodes": {"a": {"capabilityId": self.held}}}
        return str(answer(self.http.post("/v1/workflows/publish", json=manifest))["workflowId"])

    def accepted_ids(self) -> Json:
        """Publish a workflow whose agent accepts it; return what a result of it has to name."""
        workflow_id = self.held_workflow()
        # Other held workflows of the scene may be dispatched before it.
        while not (found := [d for d in self.stub.dispatches if d["workflowId"] == workflow_id]):
            self.stub.wait_dispatched()
        (dispatch,) = found
        return {name: dispatch[name] for name in ("workflowId", "nodeId", "resultId")}

    def ended_workflow(self) -> str:
        """Run a workflow of one paid node and return its id."""
        path, wait = "/v1/workflows/publish", {"Prefer": "wait=60"}
        record = answer(self.http.post(path, json=chain_of(self.agent, "a"), headers=wait))
        assert record["status"] == "success", record
        return str(record["id"])


Request = tuple[str, Json, Json]


def publish(scene: Scene) -> Request:
    one, other = (chain_of(scene.agent, names) for names in ("ab", "abc"))
    return "/v1/workflows/publish", one, other


def publish_list_form(scene: Scene) -> Request:
    one = {"nodes": [{"id": "a", "capability": scene.agent}], "edges": []}
    return "/v1/workflows", one, {**one, "maxCents": 500}


def call_hook(scene: Scene) -> Request:
    """The header's value is the id of the delivery."""
    manifest = {**chain_of(scene.agent, "a"), "trigger": {"type": "webhook"}}
    stored = answer(scene.http.post("/v1/workflows/publish", json=manifest))
    return httpx.URL(stored["hookUrl"]).path, {"x": 1}, {"x": 2}


def publish_bulk(scene: Scene) -> Request:
    # The reply holds ids and a problem with the first request's id: both come again.
    workflows = [chain_of(scene.agent, "a"), {"nodes": {}}, chain_of(scene.agent, "ab")]
    return "/v1/workflows/publish/bulk", {"workflows": workflows}, {"workflows": workflows[:1]}


def cancel(scene: Scene) -> Request:
    path = f"/v1/workflows/{scene.held_workflow()}/cancel"
    return path, {"reason": "user_request"}, {"reason": "error"}


def resume(scene: Scene) -> Request:
    ids = scene.accepted_ids()
    workflow_id = ids["workflowId"]
    scene.damage.refuse_result(workflow_id, ids["nodeId"])
    scene.http.post("/v1/workflows/nodeResult", json={**ids, "status": "success", "result": {}})
    path = f"/v1/workflows/{workflow_id}"
    wait(lambda: answer(scene.http.get(path))["quarantine"] is not None, "the quarantine")
    return f"{path}/resume", {}, {"again": True}


def node_result(scene: Scene) -> Request:
    ids = scene.accepted_ids()
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


def rotate_key(scene: Scene) -> Request:
    return f"/v1/keys/{made(scene, make_key)}/rotate", {}, {"overlapSeconds": 1}


def agent_of(scene: Scene, **more: object) -> str:
    """Register an agent of the caller's and return its DID."""
    did = unique("did:net:agent-")
    answer(scene.http.post("/v1/agents/register", json={"acard": {**card(did), **more}}))
    return did


def rotate_agent_key(scene: Scene) -> Request:
    old, new, other = (SigningKey.generate() for _ in range(3))
    did = agent_of(scene, publicKey=public(old))
    return "/v1/trust/rotate-key", rotation(did, old, new), rotation(did, old, other)


def name_agent(scene: Scene) -> Request:
    one = {"name": unique("n-"), "agentDid": agent_of(scene)}
    return "/v1/identity/names", one, {**one, "durationMonths": 1}


def renew_name(scene: Scene) -> Request:
    name = answer(scene.http.post("/v1/identity/names", json=name_agent(scene)[1]))["name"]
    return f"/v1/identity/names/{name}/renew", {"durationMonths": 1}, {"durationMonths": 2}


def transfer_name(scene: Scene) -> Request:
    name = answer(scene.http.post("/v1/identity/names", json=name_agent(scene)[1]))["name"]
    one, other = ({"agentDid": agent_of(scene)} for _ in range(2))
    return f"/v1/identity/names/{name}/transfer", one, other


def name_heir(scene: Scene) -> Request:
    one = {"agentDid": agent_of(scene), "inheritsToDid": unique("did:net:heir-")}
    one = {**one, "deadManSwitchDays": 1, "conditions": {}}
    return "/v1/identity/inheritance", one, {**one, "deadManSwitchDays": 2}


def recover(scene: Scene) -> Request:
    """As the owner, whose time lock waits."""
    did = agent_of(scene, publicKey=public(SigningKey.generate()))
    guardians = {"guardians": [did_of_key(SigningKey.generate())], "threshold": 1}
    answer(scene.http.put(f"/v1/identity/guardians/{did}", json=guardians))
    one, other = (
        {"agentDid": did, "recoveryType": "time_lock_recovery", "newPublicKey": public(key)}
        for key in (SigningKey.generate(), SigningKey.generate())
    )
    return "/v1/identity/recover", one, other


def cancel_recovery(scene: Scene) -> Request:
    return f"/v1/identity/recover/{made(scene, recover)}/cancel", {}, {"signature": "ed25519:AAAA"}


def publish_version(scene: Scene) -> Request:
    one = {"capabilityId": unique("cap.repeats."), "version": "1.0.0"}
    one = {**one, "inputSchema": {"type": "object"}, "outputSchema": {"type": "object"}}
    return "/v1/capabilities/versions", one, {**one, "changelog": "another"}


def deprecate_version(scene: Scene) -> Request:
    path, one, _ = publish_version(scene)
    for version in ("1.0.0", "1.1.0"):
        answer(scene.http.post(path, json={**one, "version": version}))
    path = f"/v1/capabilities/{one['capabilityId']}/versions/1.0.0/deprecate"
    return path, {}, {"successor": "1.1.0"}


def deposit(scene: Scene) -> Request:
    return "/v1/ledger/deposit", {"amount": 1}, {"amount": 2}


def invoice(scene: Scene) -> Request:
    one = {"workflowId": scene.ended_workflow()}
    return "/v1/invoices", one, {"workflowId": scene.ended_workflow()}


def pay_invoice(scene: Scene) -> Request:
    return f"/v1/invoices/{made(scene, invoice)}/pay", {}, {"other": 1}


def void_invoice(scene: Scene) -> Request:
    return f"/v1/invoices/{made(scene, invoice)}/void", {}, {"other": 1}


def dispute(scene: Scene) -> Request:
    one = {"disputeType": "other", "description": "It took very long."}
    return "/v1/disputes", one, {**one, "disputeType": "fraud"}


def resolve(scene: Scene) -> Request:
    one = {"status": "dismissed", "resolution": "It did not."}
    path = f"/v1/disputes/{made(scene, dispute)}/resolve"
    return path, one, {**one, "status": "resolved_split"}


def feedback(scene: Scene) -> Request:
    path = f"/v1/workflows/{scene.ended_workflow()}/feedback"
    one = {"agentDid": scene.did, "rating": 0.5}
    return path, one, {**one, "rating": 0.6}


def submit_receipt(scene: Scene) -> Request:
    one = {"workflowId": scene.ended_workflow(), "nodeId": "a", "computeMs": 1}
    return "/v1/receipts", one, {**one, "computeMs": 2}


def create_schedule(scene: Scene) -> Request:
    template = {"nodes": {"a": {"capabilityId": scene.agent}}}
    one = {"name": "one", "cronExpression": "0 0 1 1 *", "workflowTemplate": template}
    return "/v1/schedules", one, {**one, "name": "other"}


def run_by_hand(scene: Scene) -> Request:
    return f"/v1/schedules/{made(scene, create_schedule)}/trigger", {}, {"other": 1}


def publish_task(scene: Scene) -> Request:
    one = {"description": f"[{scene.agent}] one"}
    return "/v1/tasks/publish", one, {"description": f"[{scene.agent}] other"}


def task_feedback(scene: Scene) -> Request:
    record = answer(scene.http.get(f"/v1/workflows/{scene.ended_workflow()}"))
    return f"/v1/tasks/{record['taskId']}/feedback", {"rating": 0.5}, {"rating": 0.6}


def settle_task(scene: Scene) -> Request:
    record = answer(scene.http.get(f"/v1/workflows/{scene.ended_workflow()}"))
    payouts = [{"agentDid": scene.did, "amount": 0.01}]
    return f"/v1/tasks/{record['taskId']}/settle", {}, {"payouts": payouts}


def put_at_stake(scene: Scene) -> Request:
    return "/v1/stakes", {"amount": 1}, {"amount": 2}


def unstake(scene: Scene) -> Request:
    answer(scene.http.post("/v1/stakes", json={"amount": 1}))
    return "/v1/stakes/unstake", {"amount": 0.5}, {"amount": 0.25}


def quota(scene: Scene) -> Request:
    path = f"/v1/quotas/{unique('did:net:q-')}"
    return path, {"maxWorkflowsPerDay": 1}, {"maxWorkflowsPerDay": 2}


def bid(scene: Scene) -> Request:
    node = {"capabilityId": scene.agent, "selection": "auction", "auctionWindowMs": 60_000}
    manifest = {"nodes": {"a": {**node, "maxCostCredits": 1}}}
    record = answer(scene.http.post("/v1/workflows/publish", json=manifest))
    one = {"bidAmount": 0.5, "agentDid": scene.did}
    return f"/v1/auctions/{record['workflowId']}/a/bids", one, {**one, "bidAmount": 0.4}


def bid_for_task(scene: Scene) -> Request:
    task = {"description": f"[{scene.agent}] one", "selection": "auction", "budget": 1}
    made_task = answer(
        scene.http.post("/v1/tasks/publish", json={**task, "auctionWindowMs": 60_000})
    )
    one = {"bidAmount": 0.5, "agentDid": scene.did}
    return f"/v1/tasks/{made_task['taskId']}/bid", one, {**one, "bidAmount": 0.4}


def slash(scene: Scene) -> Request:
    ids = {"agentDid": scene.did, "workflowId": scene.ended_workflow(), "nodeId": "a"}
    return "/v1/stakes/slash", {**ids, "reason": "one"}, {**ids, "reason": "other"}


def collect(scene: Scene) -> Request:
    did = agent_of(scene)
    answer(scene.http.post("/v1/ledger/deposit", json={"amount": 3, "ownerDid": did}))
    return f"/v1/agents/{did}/collect", {"amount": 1}, {"amount": 2}


def revoke(scene: Scene) -> Request:
    one = {"did": unique("did:net:ghost-"), "reason": "one", "evidence": {}}
    return "/v1/trust/revoke", one, {**one, "reason": "other"}


def rebuild(scene: Scene) -> Request:
    return "/v1/reputation/rebuild", {}, {"check": True}


def webhook(scene: Scene) -> Request:
    one = {"url": f"http://127.0.0.1:9/{unique('h')}", "events": ["quota.set"]}
    return "/v1/webhooks", one, {**one, "events": ["*"]}


def webhook_test(scene: Scene) -> Request:
    return f"/v1/webhooks/{made(scene, webhook)}/test", {}, {"other": 1}


def redelivery(scene: Scene) -> Request:
    """Send a delivery again that was given up."""
    path = f"/v1/webhooks/{made(scene, webhook)}"
    sent = answer(scene.http.post(f"{path}/test"))["id"]
    scene.damage.give_up(sent)
    return f"{path}/deliveries/{sent}/redeliver", {}, {"other": 1}


def peer(scene: Scene) -> Request:
    key = public(SigningKey.generate())
    one = {"endpoint": "http://127.0.0.1:9", "region": unique("r"), "publicKey": key}
    return "/v1/federation/peers", one, {**one, "region": unique("r")}


def subnet(scene: Scene) -> Request:
    one = {"name": "team", "memberDids": [unique("did:net:")], "policyType": "private"}
    return "/v1/federation/subnets", one, {**one, "name": "another"}


def subnet_member(scene: Scene) -> Request:
    path = f"/v1/federation/subnets/{made(scene, subnet)}/members"
    return path, {"memberDid": unique("did:net:")}, {"memberDid": unique("did:net:")}


def subnet_policy(scene: Scene) -> Request:
    one = {"subnetId": made(scene, subnet), "policyType": "deny_capability", "capability": "cap.x"}
    return "/v1/federation/policies", one, {**one, "capability": "cap.y"}


def settle_peer(scene: Scene) -> Request:
    path, body, _ = peer(scene)
    added = answer(scene.http.post(path, json=body))
    paid = {"amount": 2, "ownerDid": added["clearingDid"]}
    answer(scene.http.post("/v1/ledger/deposit", json=paid))
    return f"{path}/{added['id']}/settle", {"amount": 1}, {"amount": 0.5}


def made(scene: Scene, request_of: Callable[[Scene], Request]) -> str:
    """Do a request and return the id of what it made."""
    path, body, _ = request_of(scene)
    return str(answer(scene.http.post(path, json=body))["id"])


def resume_machine(scene: Scene) -> Request:
    """Let a machine take work; it does already."""
    (member,) = answer(scene.http.get("/v1/cluster"))["members"]
    return f"/v1/cluster/machines/{member['machine']}/resume", {}, {"other": 1}


# One machine alone is not drained: tests/faults/test_drain.py.
# Of the signing key, test_signing_keys.py repeats a rotation: it has no body that could differ.
NOT_HERE = {"/v1/cluster/machines/{machine}/drain", "/v1/trust/signing-key/rotate"}
POSTS: tuple[Callable[[Scene], Request], ...] = (
    resume_machine,
    publish, publish_list_form, call_hook, publish_bulk, cancel, resume, node_result, register,
    register_flat, register_bulk, make_key, rotate_key, rotate_agent_key, name_agent, renew_name,
    transfer_name, name_heir, recover, cancel_recovery, publish_version, deprecate_version, deposit,
    invoice, pay_invoice, void_invoice, dispute,
    resolve, feedback, publish_task, task_feedback, settle_task, put_at_stake, unstake, quota,
    rebuild, bid, bid_for_task, slash, revoke, collect, submit_receipt,
    webhook, webhook_test, redelivery,
    create_schedule, run_by_hand, peer, settle_peer, subnet, subnet_member, subnet_policy,
)  # fmt: skip


@pytest.fixture
def scene(admin: Caller, make_agent: MakeAgent, make_caller: MakeCaller, damage: Damage) -> Scene:
    held = make_agent(lambda _: (202, {"ok": True}))
    answer(admin.http.post("/v1/ledger/deposit", json={"amount": 10}))
    agent = make_agent(owner=make_caller())  # nobody rates an agent of their own
    return Scene(admin.http, agent.capability, held.capability, agent.did, held.stub, damage)


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
    # That an administrator reads the chain is noted in it, once in a while: by this test perhaps.
    news = [entry for entry in news if entry["eventType"] != "right.used"]
    assert all(entry["id"] <= last for entry in news), "neither a repeat nor a refusal did anything"


def test_every_state_changing_post_is_tried_here(scene: Scene) -> None:
    declared = {
        operation.path
        for operation in all_operations()
        if operation.method == "POST" and operation.repeats is not Repeats.IGNORED
    }
    paths = [request_of(scene)[0] for request_of in POSTS]
    for template in declared - NOT_HERE:
        pattern = re.compile(re.sub(r"\{\w+\}", "[^/]+", template))
        assert any(pattern.fullmatch(path) for path in paths), template


def test_a_key_of_one_path_is_refused_on_another(scene: Scene) -> None:
    headers = {"Idempotency-Key": unique("k")}
    paths = [f"/v1/workflows/{scene.held_workflow()}/cancel" for _ in range(2)]
    answer(scene.http.post(paths[0], json=WHY, headers=headers))
    refusal(scene.http.post(paths[1], json=WHY, headers=headers), 409, "KEY_REUSED")
    answer(scene.http.post(paths[1], json=WHY, headers={"Idempotency-Key": unique("k")}))


def test_idempotency_keys_of_two_callers_are_two_keys(
    payer: Caller, make_caller: MakeCaller, make_agent: MakeAgent
) -> None:
    agent = make_agent()
    other = make_caller(10)
    key = {"Idempotency-Key": unique("k")}
    first = answer(payer.publish(chain_of(agent.capability), **key))
    second = answer(other.publish(chain_of(agent.capability), **key))
    assert first["workflowId"] != second["workflowId"]


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


def test_a_repeat_with_a_weaker_key_of_the_owner_shows_no_secret(make_caller: MakeCaller) -> None:
    strong = make_caller(scopes=["keys:write", "ledger:deposit"])
    weak, equal = (
        answer(strong.http.post("/v1/keys", json={"scopes": scopes}))["key"]
        for scopes in (["keys:write"], ["keys:write", "ledger:deposit"])
    )
    body, headers = {"scopes": ["ledger:deposit"]}, {"Idempotency-Key": unique("k")}
    made = answer(strong.http.post("/v1/keys", json=body, headers=headers))
    for key, status, code in ((weak, 403, "INSUFFICIENT_SCOPE"), (equal, 409, "CONFLICT")):
        own = {**headers, "x-api-key": key}
        problem = refusal(strong.http.post("/v1/keys", json=body, headers=own), status, code)
        assert made["key"] not in str(problem)
    again = answer(strong.http.post("/v1/keys", json=body, headers=headers))
    assert again["key"] == made["key"]


def test_posts_that_store_nothing_ignore_the_key(scene: Scene) -> None:
    headers = {"Idempotency-Key": unique("k")}
    for names in ("a", "ab"):
        dry = {**chain_of(scene.agent, names), "dryRun": True}
        reply = scene.http.post("/v1/workflows/publish", json=dry, headers=headers)
        assert list(answer(reply)["candidates"]) == list(names)
        assert "idempotency-replayed" not in reply.headers
