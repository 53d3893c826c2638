"""Webhooks out: made, changed, tested and delivered over HTTP, by a deployment's timekeeper."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from standardwebhooks import Webhook

from callboard import Client
from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    refusal,
    unique,
    wait,
)  # fmt: skip
from tests.contract.conftest import client as http_client
from tests.platform.deployments import RunningDeployment
from tests.platform.webhook_receiver import Receiver, webhook_receiver

Json = dict[str, Any]
SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with webhook_receiver() as made:
        yield made


def create(caller: Caller, url: str, *events: str, **members: Any) -> Json:
    """Make a webhook."""
    body = {"url": url, "events": list(events) or ["workflow.finished"], **members}
    return answer(caller.http.post("/v1/webhooks", json=body))


def deliveries(caller: Caller, hook: Json, **query: Any) -> list[Json]:
    """Return the deliveries of a webhook, the newest first."""
    path = f"/v1/webhooks/{hook['id']}/deliveries"
    found: list[Json] = answer(caller.http.get(path, params=query))["deliveries"]
    return found


def test_webhooks_out_an_event_is_sent_signed_and_listed(
    payer: Caller, make_agent: MakeAgent, receiver: Receiver
) -> None:
    hook = create(payer, f"{receiver.url}/x", "workflow.finished", secret=SECRET)
    assert hook["secret"] == SECRET and hook["enabled"] and hook["ownerDid"] == payer.did
    record = payer.run(chain_of(make_agent().capability, "ab"))
    wait(lambda: bool(deliveries(payer, hook, status="delivered")), "the delivery")
    (message,) = receiver.messages
    (listed,) = deliveries(payer, hook)
    assert Webhook(SECRET).verify(message.body, message.headers) == message.json
    assert listed["id"] == message.id and listed["workflowId"] == record["id"]
    assert (listed["status"], listed["attempts"], listed["error"]) == ("delivered", 1, None)
    entry = answer(payer.http.get(f"/v1/audit/{listed['auditId']}"))
    assert message.json == {
        "type": "workflow.finished", "timestamp": entry["createdAt"], "data": entry,
    }  # fmt: skip
    # The same id and bytes again.
    path = f"/v1/webhooks/{hook['id']}/deliveries/{listed['id']}/redeliver"
    assert answer(payer.http.post(path))["status"] == "pending"
    wait(lambda: len(receiver.messages) == 2, "the redelivery")
    again = receiver.messages[1]
    assert (again.id, again.body) == (message.id, message.body)


def test_a_test_is_sent_and_a_rotated_secret_signs_beside_the_previous_one(
    payer: Caller, receiver: Receiver
) -> None:
    hook = create(payer, f"{receiver.url}/test", "*")
    path = f"/v1/webhooks/{hook['id']}"
    key = {"Idempotency-Key": unique("rotate-")}
    rotated = answer(payer.http.patch(path, json={"rotateSecret": True}, headers=key))
    again = payer.http.patch(path, json={"rotateSecret": True}, headers=key)
    assert answer(again) == rotated and again.headers["idempotency-replayed"] == "true"
    assert rotated["secret"] != hook["secret"] and rotated["previousSecretEndsAt"]
    assert "secret" not in answer(payer.http.get(path))
    made = answer(payer.http.post(f"{path}/test"))
    assert (made["eventType"], made["auditId"], made["status"]) == ("webhook.test", None, "pending")
    wait(lambda: bool(receiver.messages), "the test")
    (message,) = receiver.messages
    assert message.id == made["id"] and message.json["type"] == "webhook.test"
    assert len(message.headers["webhook-signature"].split(" ")) == 2
    for secret in (hook["secret"], rotated["secret"]):
        Webhook(secret).verify(message.body, message.headers)


def test_a_repeat_with_another_key_of_the_owner_makes_no_second_webhook(
    payer: Caller, make_caller: MakeCaller
) -> None:
    second, key = make_caller(ownerDid=payer.did), {"Idempotency-Key": unique("k-")}
    body = {"url": "http://127.0.0.1:9/", "events": ["*"]}
    hook = answer(payer.http.post("/v1/webhooks", json=body, headers=key))
    again = second.http.post("/v1/webhooks", json=body, headers=key)
    assert "another credential" in refusal(again, 409, "KEY_REUSED")["detail"]
    assert [one["id"] for one in answer(payer.http.get("/v1/webhooks"))["webhooks"]] == [hook["id"]]
    first = answer(payer.http.post("/v1/webhooks", json=body, headers=key))
    assert first == hook


def test_a_webhook_is_changed_paused_enabled_and_deleted(payer: Caller, receiver: Receiver) -> None:
    hook = create(payer, f"{receiver.url}/a", "quota.set")
    path = f"/v1/webhooks/{hook['id']}"
    body = {"url": f"{receiver.url}/b", "events": ["*", "key.created", "*"], "enabled": False}
    changed = answer(payer.http.patch(path, json=body))
    assert changed["events"] == ["*", "key.created"] and changed["url"] == body["url"]
    assert changed["pauseReason"] == "it is disabled"
    refusal(payer.http.post(f"{path}/test"), 409, "CONFLICT")
    assert answer(payer.http.patch(path, json={"enabled": True}))["pauseReason"] is None
    other = create(payer, f"{receiver.url}/c")
    page = answer(payer.http.get("/v1/webhooks?limit=1"))
    rest = answer(payer.http.get("/v1/webhooks", params={"cursor": page["nextCursor"]}))
    assert [one["id"] for one in page["webhooks"] + rest["webhooks"]] == [hook["id"], other["id"]]
    assert answer(payer.http.delete(path)) == {"success": True, "id": hook["id"]}
    refusal(payer.http.get(path), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"url": "ftp://127.0.0.1/"}, 400, "INVALID_REQUEST"),
        ({"url": "http://me:pw@127.0.0.1/"}, 400, "INVALID_REQUEST"),
        ({"url": "http://127.0.0.1:99999/"}, 400, "INVALID_REQUEST"),
        ({"url": "http://127.0.0.1/" + "x" * 2_048}, 400, "INVALID_REQUEST"),
        ({"url": "http://127.0.0.1/\u0000"}, 400, "INVALID_REQUEST"),
        ({"url": "http://10.0.0.1/"}, 403, "POLICY_DENIED"),
        ({"url": "http://[::ffff:169.254.169.254]/"}, 403, "POLICY_DENIED"),
        ({"events": []}, 400, "INVALID_REQUEST"),
        ({"events": ["workflow.done"]}, 400, "INVALID_REQUEST"),
        ({"events": [["*"]]}, 400, "INVALID_REQUEST"),
        ({"events": ["*"] * 101}, 400, "INVALID_REQUEST"),
        ({"secret": "whsec_c2hvcnQ="}, 400, "INVALID_REQUEST"),
        ({"secret": "whsec_" + "A" * 44 + "!"}, 400, "INVALID_REQUEST"),
        ({"secret": SECRET.removeprefix("whsec_")}, 400, "INVALID_REQUEST"),
        ({"enabled": True}, 400, "INVALID_REQUEST"),
    ],
)
def test_a_bad_webhook_is_refused(payer: Caller, change: Json, status: int, code: str) -> None:
    body = {"url": "http://127.0.0.1:9/", "events": ["*"], **change}
    refused = refusal(payer.http.post("/v1/webhooks", json=body), status, code)
    assert "secret" not in change or change["secret"] not in str(refused)
    assert answer(payer.http.get("/v1/webhooks"))["webhooks"] == []


def test_an_owner_has_a_hundred_webhooks_at_most(payer: Caller) -> None:
    for _ in range(100):
        create(payer, "http://127.0.0.1:9/")
    body = {"url": "http://127.0.0.1:9/", "events": ["*"]}
    refused = refusal(payer.http.post("/v1/webhooks", json=body), 429, "QUOTA_EXCEEDED")
    assert "100 webhooks" in refused["detail"]
    first = answer(payer.http.get("/v1/webhooks?limit=1"))["webhooks"][0]["id"]
    answer(payer.http.delete(f"/v1/webhooks/{first}"))
    create(payer, "http://127.0.0.1:9/")


def test_a_webhook_ends_with_its_key_and_is_bound_to_the_one_that_enables_it(
    deployment: RunningDeployment, make_caller: MakeCaller
) -> None:
    owner = make_caller()
    derived = answer(owner.http.post("/v1/keys", json={}))
    with http_client(deployment.url, derived["key"]) as http:
        body = {"url": "http://127.0.0.1:9/", "events": ["*"]}
        path = f"/v1/webhooks/{answer(http.post('/v1/webhooks', json=body))['id']}"
    answer(owner.http.delete(f"/v1/keys/{derived['id']}"))
    wait(lambda: not answer(owner.http.get(path))["enabled"], "the pause")
    assert "API key" in answer(owner.http.get(path))["pauseReason"]
    assert answer(owner.http.patch(path, json={"enabled": True}))["enabled"]
    assert answer(owner.http.post(f"{path}/test"))["status"] == "pending"


def test_what_sends_events_takes_the_right_to_read_them(
    payer: Caller, make_caller: MakeCaller
) -> None:
    narrow = make_caller(ownerDid=payer.did, scopes=["webhooks:write"])
    body = {"url": "http://127.0.0.1:9/", "events": ["*"]}
    refusal(narrow.http.post("/v1/webhooks", json=body), 403, "INSUFFICIENT_SCOPE")
    path = f"/v1/webhooks/{create(payer, body['url'])['id']}"
    for change in ({"url": "http://127.0.0.1:7/"}, {"events": ["*"]}, {"enabled": True}):
        refusal(narrow.http.patch(path, json=change), 403, "INSUFFICIENT_SCOPE")
    assert answer(narrow.http.patch(path, json={"rotateSecret": True}))["secret"]
    assert answer(narrow.http.delete(path))["success"]


def test_an_administrators_change_leaves_a_webhook_with_its_owners_key(
    deployment: RunningDeployment, make_caller: MakeCaller, admin: Caller
) -> None:
    owner = make_caller()
    derived = answer(owner.http.post("/v1/keys", json={}))
    with http_client(deployment.url, derived["key"]) as http:
        body = {"url": "http://127.0.0.1:9/", "events": ["*"]}
        path = f"/v1/webhooks/{answer(http.post('/v1/webhooks', json=body))['id']}"
        answer(http.post(f"{path}/test"))
        wait(lambda: answer(http.get(path))["failingSince"] is not None, "the failure")
    why = {"x-callboard-reason": unique("moved-")}
    changed = answer(admin.http.patch(path, json={"url": "http://127.0.0.1:7/"}, headers=why))
    assert (changed["ownerDid"], changed["failingSince"]) == (owner.did, None)
    noted = answer(admin.http.get("/v1/audit", params={"targetId": f"PATCH {path}"}))["entries"]
    (entry,) = noted
    assert entry["payload"]["authority"] == {
        "right": "admin", "reason": why["x-callboard-reason"],
    }  # fmt: skip
    answer(owner.http.delete(f"/v1/keys/{derived['id']}"))
    wait(lambda: not answer(owner.http.get(path))["enabled"], "the pause")


def _list_form(caller: Caller, manifest: Json) -> Json:
    nodes = [{"id": "a", "capability": manifest["nodes"]["a"]["capabilityId"]}]
    body = {"webhookUrl": manifest["webhookUrl"], "nodes": nodes, "edges": []}
    return answer(caller.http.post("/v1/workflows", json=body))


def _bulk(caller: Caller, manifest: Json) -> Json:
    body = {"workflows": [manifest]}
    made: Json = answer(caller.http.post("/v1/workflows/publish/bulk", json=body))["results"][0]
    return made


def _task(caller: Caller, manifest: Json) -> Json:
    words = f"[{manifest['nodes']['a']['capabilityId']}] go"
    body = {"description": words, "webhookUrl": manifest["webhookUrl"]}
    return answer(caller.http.post("/v1/tasks/publish", json=body))


FORMS: tuple[Callable[[Caller, Json], Json], ...] = (
    lambda caller, manifest: answer(caller.publish(manifest)),
    lambda caller, manifest: answer(caller.publish(manifest, Prefer="wait=30")),
    _list_form,
    _bulk,
    _task,
)


def test_the_url_of_a_publish_is_told_of_the_end(
    payer: Caller, make_agent: MakeAgent, receiver: Receiver
) -> None:
    chain = chain_of(make_agent().capability, "a")
    made = {
        f"/{number}": publish(payer, {**chain, "webhookUrl": f"{receiver.url}/{number}"})
        for number, publish in enumerate(FORMS)
    }
    wait(lambda: len(receiver.messages) == len(made), "the ends")
    for path, reply in made.items():
        (message,) = receiver.at(path)
        Webhook(reply["webhookSecret"]).verify(message.body, message.headers)
        assert message.json["type"] == "workflow.finished"
        workflow_id = reply.get("workflowId") or reply["id"]
        assert message.json["data"]["targetId"] == workflow_id
        assert not [text for text in reply.get("warnings", ()) if "webhook" in text]
    assert answer(payer.http.get("/v1/webhooks"))["webhooks"] == []


@pytest.mark.parametrize("is_publish", [False, True])
def test_the_url_of_a_template_is_told_of_the_ends_of_its_runs(
    payer: Caller, admin: Caller, make_agent: MakeAgent, receiver: Receiver, is_publish: bool
) -> None:
    """All are signed by the secret that its owner is shown, and nobody else, at its creation."""
    template = {**chain_of(make_agent().capability, "a"), "webhookUrl": f"{receiver.url}/runs"}
    config = {"cronExpression": "30 3 1 1 *"}
    if is_publish:
        trigger = {"type": "scheduled", "config": config}
        made = answer(payer.publish({**template, "trigger": trigger}))
    else:
        body = {"name": "n", **config, "workflowTemplate": template}
        made = answer(payer.http.post("/v1/schedules", json=body))
    path = f"/v1/schedules/{made['id']}"
    for _ in range(2):
        answer(payer.http.post(f"{path}/trigger"))
    wait(lambda: len(receiver.messages) == 2, "the ends")
    for message in receiver.messages:
        Webhook(made["webhookSecret"]).verify(message.body, message.headers)
    assert "webhookSecret" not in answer(payer.http.get(path))
    assert "webhookSecret" not in answer(admin.http.patch(path, json={"name": "m"}))
    assert answer(payer.http.patch(path, json={}))["webhookSecret"] == made["webhookSecret"]


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1/", "http://[fd00::1]/x", "http://me@127.0.0.1/", "http://a:0x/"]
)
def test_a_denied_url_of_a_publish_is_refused(
    payer: Caller, make_agent: MakeAgent, url: str
) -> None:
    manifest = {**chain_of(make_agent().capability, "a"), "webhookUrl": url}
    refused = refusal(payer.publish(manifest), 400, "INVALID_MANIFEST")
    assert refused["errors"][0]["path"] == "webhookUrl"
    # A name is judged when it is connected to.
    fine = {**manifest, "webhookUrl": "http://no-such-host.invalid/", "dryRun": True}
    assert "webhookSecret" not in answer(payer.publish(fine))


def test_the_client_has_a_method_for_each_operation(
    deployment: RunningDeployment, payer: Caller, receiver: Receiver
) -> None:
    with Client(deployment.url, api_key=payer.key) as client:
        hook = client.create_webhook(f"{receiver.url}/x", ["*"], secret=SECRET)
        assert client.webhooks().rows == [client.webhook(hook.id)]
        assert client.change_webhook(hook.id, events=["quota.set"]).events == ["quota.set"]
        assert client.rotate_webhook_secret(hook.id).secret != SECRET
        sent = client.test_webhook(hook.id)
        wait(lambda: client.deliveries(hook.id, status="delivered").rows != [], "the test")
        assert client.redeliver(hook.id, sent.id).id == sent.id
        assert client.delete_webhook(hook.id).success
