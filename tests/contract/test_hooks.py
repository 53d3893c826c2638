"""Hooks: a call of the URL of a webhook trigger starts one run for each delivery.

Reference: features.md (Triggers).
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from standardwebhooks.webhooks import Webhook

from tests.contract.conftest import (
    Caller,
    Json,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    client,
    refusal,
    unique,
    wait,
)
from tests.contract.signers import Signer
from tests.platform.deployments import RunningDeployment

SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes....").decode()
MAPPINGS = {"who": "$.trigger.result.who", "all": "$.trigger.result"}


@pytest.fixture
def agent(make_agent: MakeAgent) -> RegisteredAgent:
    return make_agent()


def template(capability: str, **config: object) -> Json:
    node = {
        "capabilityId": capability,
        "payload": {"text": "dear {{who}}", "own": "s3cret"},
        "inputMappings": MAPPINGS,
    }
    trigger = {"type": "webhook", "config": config}
    return {"intent": "greet", "nodes": {"a": node}, "trigger": trigger}


def made(owner: Caller, capability: str, **config: object) -> Json:
    """Publish a webhook trigger; return the reply."""
    return answer(owner.publish(template(capability, **config)))


def call(anonymous: httpx.Client, stored: Json, body: object, **headers: str) -> httpx.Response:
    """Call a hook, as anybody who has its URL."""
    path = httpx.URL(stored["hookUrl"]).path
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return anonymous.post(path, json=body, headers=named)


def runs_of(owner: Caller, stored: Json) -> list[Json]:
    return list(answer(owner.http.get(f"/v1/triggers/{stored['id']}/runs"))["runs"])


def test_a_call_starts_a_run_that_maps_the_body(
    payer: Caller, agent: RegisteredAgent, anonymous: httpx.Client
) -> None:
    stored = made(payer, agent.capability, name="greeter")
    assert stored["workflowId"] == stored["templateId"] == stored["id"]
    assert (stored["status"], stored["kind"], stored["name"]) == ("active", "webhook", "greeter")
    assert payer.balance()["balance"] == 100
    started = answer(call(anonymous, stored, {"who": "{{own}}"}))
    assert (started["templateId"], started["status"]) == (stored["id"], "pending")
    record = payer.finished(f"/v1/workflows/{started['workflowId']}")
    assert (record["status"], record["templateId"]) == ("success", stored["id"])
    assert record["templateVersion"] == 1
    (dispatch,) = agent.stub.dispatches
    assert dispatch["inputs"] == {
        "text": "dear {{own}}",
        "own": "s3cret",
        "who": "{{own}}",
        "all": {"who": "{{own}}"},
    }
    (run,) = runs_of(payer, stored)
    assert (run["status"], run["workflowStatus"]) == ("started", "success")


def test_only_its_creator_reads_the_url_of_a_hook(
    payer: Caller,
    make_caller: MakeCaller,
    admin: Caller,
    agent: RegisteredAgent,
    anonymous: httpx.Client,
) -> None:
    stored = made(payer, agent.capability, secret=SECRET, maxRunsPerMinute=7)
    path = f"/v1/triggers/{stored['id']}"
    shown = answer(payer.http.get(path))
    assert (shown["hookUrl"], shown["isSigned"]) == (stored["hookUrl"], True)
    assert (shown["kind"], shown["name"], shown["maxRunsPerMinute"]) == ("webhook", "greet", 7)
    changed = answer(payer.http.patch(path, json={"name": "other"}))
    assert changed["hookUrl"] == stored["hookUrl"]
    (listed,) = answer(payer.http.get("/v1/triggers"))["triggers"]
    assert "hookUrl" not in listed
    assert "hookUrl" not in answer(admin.http.get(path))
    reader = make_caller(ownerDid=payer.did, scopes=["schedules:read"])
    assert "hookUrl" not in answer(reader.http.get(path))
    assert SECRET[6:] not in str(shown) + str(listed)
    other = make_caller()
    refusal(other.http.get(path), 404, "NOT_FOUND")
    refusal(other.http.delete(path), 404, "NOT_FOUND")
    refusal(payer.http.get(path.replace("triggers", "schedules")), 404, "NOT_FOUND")


def test_a_delivery_starts_one_run(
    payer: Caller, agent: RegisteredAgent, anonymous: httpx.Client
) -> None:
    stored = made(payer, agent.capability)
    body = {"who": "Ada"}
    first = call(anonymous, stored, body, webhook_id="d1", idempotency_key="k1")
    again = call(anonymous, stored, body, webhook_id="d1", idempotency_key="k2")
    assert answer(again) == answer(first)
    assert again.headers["idempotency-replayed"] == "true"
    refusal(call(anonymous, stored, {"who": "Eve"}, webhook_id="d1"), 409, "KEY_REUSED")
    spelled = b'{ "who":"\\u0041da" }'
    headers = {"webhook-id": "d1", "content-type": "application/json"}
    path = httpx.URL(stored["hookUrl"]).path
    assert answer(anonymous.post(path, content=spelled, headers=headers)) == answer(first)
    by_key = [answer(call(anonymous, stored, body, idempotency_key="k1")) for _ in range(2)]
    new = [answer(call(anonymous, stored, body)) for _ in range(2)]
    started = {one["workflowId"] for one in (answer(first), *by_key, *new)}
    assert len(started) == 4
    assert {run["workflowId"] for run in runs_of(payer, stored)} == started
    for name in ("webhook_id", "idempotency_key"):
        refusal(call(anonymous, stored, body, **{name: "x" * 256}), 400, "INVALID_REQUEST")
    # A delivery stays what it is when the trigger has ended.
    answer(payer.http.delete(f"/v1/triggers/{stored['id']}"))
    assert answer(call(anonymous, stored, body, webhook_id="d1")) == answer(first)
    ended = refusal(call(anonymous, stored, body, webhook_id="d2"), 409, "CONFLICT")
    assert "ended: deleted" in ended["detail"]


def test_a_hook_with_a_secret_needs_a_signature_of_the_bytes(
    payer: Caller, agent: RegisteredAgent, anonymous: httpx.Client
) -> None:
    stored = made(payer, agent.capability, secret=SECRET)
    text, now = '{"who": "Ada"}', datetime.now(UTC)

    def signed(
        body: str, at: datetime = now, secret: str = SECRET, **others: str | bytes
    ) -> httpx.Response:
        headers: dict[str, str] = {
            "webhook-id": unique("d"),
            "webhook-timestamp": str(int(at.timestamp())),
            "content-type": "application/json",
        }
        headers["webhook-signature"] = Webhook(secret).sign(headers["webhook-id"], at, text)
        sent = {**headers, **{name.replace("_", "-"): one for name, one in others.items()}}
        return anonymous.post(httpx.URL(stored["hookUrl"]).path, content=body, headers=sent)

    started = answer(signed(text))
    late, early = now - timedelta(minutes=6), now + timedelta(minutes=6)
    wrong = [
        signed('{"who":"Ada"}'),
        signed(text, late),
        signed(text, early),
        signed(text, secret="whsec_" + "A" * 32),
        signed(text, webhook_id="other"),
        signed(text, webhook_signature=""),
        signed(text, webhook_signature="v1"),
        signed(text, webhook_signature="v1,?"),
        signed(text, webhook_signature="v1,\xe9".encode("latin-1")),
        signed(text, webhook_timestamp="now"),
        call(anonymous, stored, {"who": "Ada"}),
    ]
    for response in wrong:
        refusal(response, 401, "UNAUTHORIZED")
    assert [run["workflowId"] for run in runs_of(payer, stored)] == [started["workflowId"]]


def test_calls_that_start_nothing(
    payer: Caller, agent: RegisteredAgent, anonymous: httpx.Client
) -> None:
    stored = made(payer, agent.capability, maxRunsPerMinute=1)
    path = httpx.URL(stored["hookUrl"]).path
    assert "isSigned" in stored and not stored["isSigned"]
    for token in ("x", path[-20:], path[-43:].swapcase(), "x" * 100):
        refusal(anonymous.post(f"/v1/hooks/{token}", json={}), 404, "NOT_FOUND")
    refusal(anonymous.post(path, content=b"{"), 400, "INVALID_REQUEST")
    refusal(anonymous.post(path, json="x" * 65_536), 413, "PAYLOAD_TOO_LARGE")
    refusal(anonymous.get(path), 405, "METHOD_NOT_ALLOWED")
    trigger = f"/v1/triggers/{stored['id']}"
    answer(payer.http.patch(trigger, json={"enabled": False}))
    paused = refusal(call(anonymous, stored, {"who": 1}), 409, "CONFLICT")
    assert "paused: disabled" in paused["detail"]
    answer(payer.http.patch(trigger, json={"enabled": True}))
    answer(call(anonymous, stored, {"who": 1}, webhook_id="d"))
    limited = call(anonymous, stored, {"who": 1})
    refusal(limited, 429, "RATE_LIMITED")
    assert int(limited.headers["retry-after"]) >= 1
    # A repeat counts nothing.
    answer(call(anonymous, stored, {"who": 1}, webhook_id="d"))
    assert len(runs_of(payer, stored)) == 1


@pytest.mark.parametrize(
    "body",
    [
        '{"who": "\\ud800"}', '{"who": 1e999}', '{"who": NaN}', "[" * 300 + "]" * 300,
        '{"who": "a\\u0000b"}', "", "\ufeff{}",
    ],
)  # fmt: skip
def test_hostile_bodies_are_refused(
    payer: Caller, agent: RegisteredAgent, anonymous: httpx.Client, body: str
) -> None:
    stored = made(payer, agent.capability)
    path, headers = httpx.URL(stored["hookUrl"]).path, {"content-type": "application/json"}
    sent = body.encode("utf-8")
    assert anonymous.post(path, content=sent, headers=headers).status_code == 400
    assert runs_of(payer, stored) == []


@pytest.mark.parametrize("body", [None, 5, "text", [], {}, {"a": [{"b": 0.1}]}])
def test_any_json_value_starts_a_run(
    payer: Caller, agent: RegisteredAgent, anonymous: httpx.Client, body: object
) -> None:
    whole = template(agent.capability)
    whole["nodes"]["a"]["inputMappings"] = {"all": "$.trigger.result"}
    stored = answer(payer.publish(whole))
    path, headers = httpx.URL(stored["hookUrl"]).path, {"content-type": "application/json"}
    sent = json.dumps(body).encode()
    started = answer(anonymous.post(path, content=sent, headers=headers))
    assert payer.finished(f"/v1/workflows/{started['workflowId']}")["status"] == "success"
    assert agent.stub.dispatches[-1]["inputs"]["all"] == body


def test_a_run_that_its_owner_cannot_pay_is_refused_without_its_balance(
    make_caller: MakeCaller, agent: RegisteredAgent, anonymous: httpx.Client
) -> None:
    poor = make_caller(0.05)
    stored = made(poor, agent.capability)
    for _ in range(2):
        said = refusal(call(anonymous, stored, {"who": 1}, webhook_id="d"), 409, "CONFLICT")
        assert said["detail"] == "the run was refused: INSUFFICIENT_CREDITS"
    (run,) = runs_of(poor, stored)
    assert (run["status"], run["reason"]) == ("failed", "INSUFFICIENT_CREDITS")


def test_a_hook_pauses_when_the_key_of_its_creator_ends(
    make_caller: MakeCaller, admin: Caller, agent: RegisteredAgent, anonymous: httpx.Client
) -> None:
    owner = make_caller(10)
    stored = made(owner, agent.capability)
    answer(admin.http.delete(f"/v1/keys/{owner.key_id}"))
    refusal(call(anonymous, stored, {"who": 1}), 409, "CONFLICT")
    shown = answer(admin.http.get(f"/v1/triggers/{stored['id']}"))
    assert (shown["status"], shown["reason"]) == ("paused", "credentialEnded")
    assert agent.stub.dispatches == []


@pytest.mark.parametrize("is_owned", [True, False])
def test_what_a_signature_has_made_ends_when_it_speaks_for_its_did_no_more(
    deployment: RunningDeployment,
    make_caller: MakeCaller,
    admin: Caller,
    agent: RegisteredAgent,
    anonymous: httpx.Client,
    is_owned: bool,
) -> None:
    """A stranger registers an agent under a DID and signs for it. Then the owner of the DID gets an
    API key, or the agent is deregistered."""
    squatter, signer = make_caller(), Signer(unique("did:net:acme-"))
    capability = {"id": "cap.test.squat.v1", "description": "x"}
    card = {"did": signer.did, "endpoint": "http://127.0.0.1:9", "capabilities": [capability]}
    card |= {"version": 1, "publicKey": base64.b64encode(bytes(signer.key.verify_key)).decode()}
    answer(squatter.http.post("/v1/agents/register", json={"acard": card}))
    with client(deployment.url) as http:
        http.auth = signer
        stored = answer(http.post("/v1/workflows/publish", json=template(agent.capability)))
        body = {"url": "http://127.0.0.1:9/", "events": ["*"]}
        webhook = f"/v1/webhooks/{answer(http.post('/v1/webhooks', json=body))['id']}"
    assert answer(admin.http.get(webhook))["enabled"]
    if is_owned:
        answer(admin.http.post("/v1/keys", json={"ownerDid": signer.did}))
    else:
        answer(squatter.http.delete(f"/v1/agents/{signer.did}"))
    answer(admin.http.post("/v1/ledger/deposit", json={"ownerDid": signer.did, "amount": 9}))
    refusal(call(anonymous, stored, {"who": 1}), 409, "CONFLICT")
    shown = answer(admin.http.get(f"/v1/triggers/{stored['id']}"))
    assert (shown["status"], shown["reason"]) == ("paused", "credentialEnded")
    assert agent.stub.dispatches == []
    wait(lambda: not answer(admin.http.get(webhook))["enabled"], "the pause")


def test_a_key_that_may_not_publish_makes_no_hook(
    make_caller: MakeCaller, agent: RegisteredAgent
) -> None:
    for scopes in (["schedules:write"], ["workflows:read", "schedules:write"]):
        narrow = make_caller(scopes=scopes)
        refusal(narrow.publish(template(agent.capability)), 403, "INSUFFICIENT_SCOPE")


def test_the_token_of_a_hook_is_in_no_log_and_no_problem(
    payer: Caller, agent: RegisteredAgent, anonymous: httpx.Client, deployment: RunningDeployment
) -> None:
    stored = made(payer, agent.capability)
    path = httpx.URL(stored["hookUrl"]).path
    token = path.rsplit("/", 1)[1]
    started = answer(call(anonymous, stored, {"who": 1}))
    for response in (anonymous.post(f"{path}/x", json={}), anonymous.delete(path)):
        assert token not in response.text
    payer.finished(f"/v1/workflows/{started['workflowId']}")
    logs = [file.read_text(errors="replace") for file in (deployment.home / "logs").rglob("*.*")]
    assert any("publish" in text or "callboard" in text for text in logs)
    assert not any(token in text for text in logs)
