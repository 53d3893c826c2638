"""The forms that clients in the field send, as the bytes that they send, and what each changes.

Every call is made in both spellings: with the key in its own header, DIDs raw; and with the key as
Bearer, DIDs percent-encoded, the path's first slash doubled. All requests name JSON as their type,
those without a body too. Rows of the HTTP reference that are tested elsewhere: discovery in
`test_discovery.py`, the statuses of a task and auctions for it in `test_tasks.py`, what agents
answer in `test_execution_replies.py` and `test_execution_async.py`, signed heartbeats in
`test_signed_requests.py`, a status in force at its answer in `test_heartbeat.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from string import Template
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from serve_app.api import all_operations
from serve_app.openapi.document import openapi_document
from tests.contract.conftest import Caller, MakeAgent, MakeCaller, answer, client, refusal, unique
from tests.contract.test_execution_async import handed_in, later, wait_node
from tests.contract.test_tasks import bidder
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]


@dataclass(frozen=True)
class FieldClient:
    """Sends what is given, byte by byte.

    `is_bearer`: in the second of the two spellings.
    """

    http: httpx.Client
    is_bearer: bool

    def send(
        self, method: str, path: str, body: str = "", *, key: str = "", **values: str
    ) -> httpx.Response:
        """Send one request.

        Args:
            path: `$name` in it stands for a value, in this client's spelling.
            body: as it is sent; `$name` stands for a value as it is.
            key: none is sent if empty.
        """
        spelt = {name: quote(value, safe="") for name, value in values.items()}
        target = Template(path).substitute(spelt if self.is_bearer else values)
        raw = ("/" + target if self.is_bearer else target).encode()
        headers = {"Content-Type": "application/json"}
        if key:
            named = {"Authorization": f"Bearer {key}"} if self.is_bearer else {"x-api-key": key}
            headers.update(named)
        return self.http.request(
            method,
            self.http.base_url.copy_with(raw_path=raw),
            content=Template(body).substitute(values).encode(),
            headers=headers,
        )


@pytest.fixture(params=[False, True], ids=["own header", "Bearer"])
def field(request: pytest.FixtureRequest, deployment: RunningDeployment) -> Iterator[FieldClient]:
    """A client of each spelling."""
    with client(deployment.url) as http:
        yield FieldClient(http, request.param)


def owners_part(did: str) -> str:
    """Return the part of a made capability id that its agent's DID decides."""
    return hashlib.sha256(did.encode()).hexdigest()[:12]


# -- agents ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "ids", "is_known_by"),
    [
        (
            '{"did":"$did","name":null,"endpoint":"http://127.0.0.1:9",'
            '"capabilities":[{"description":"Sums up"},{"description":"Counts"}]}',
            ["cap.$owner.0.v1", "cap.$owner.1.v1"],
            (None, 1, "available"),
        ),
        (
            '{"did":"$did","name":"Sums","capabilities":'
            '[{"id":"$capability","description":"Sums up"},{"description":"Counts"}],"version":1}',
            ["$capability", "cap.$owner.1.v1"],
            ("Sums", 1, "offline"),
        ),
        (
            '{"did":"$did","name":"Sums","endpoint":"http://127.0.0.1:9","capabilities":'
            '[{"capability_id":"$capability","description":"Sums up"}],"version":"1.0.0"}',
            ["$capability"],
            ("Sums", 1, "available"),
        ),
    ],
    ids=["without ids", "without an endpoint", "capability_id"],
)
def test_an_agent_is_registered_flat(
    field: FieldClient,
    payer: Caller,
    body: str,
    ids: list[str],
    is_known_by: tuple[str | None, int, str],
) -> None:
    names = {"did": unique("did:web:host%3A8080-"), "capability": unique("cap.field.") + ".v1"}
    reply = answer(field.send("POST", "/v1/agent/register", body, key=payer.key, **names))
    assert (reply["ok"], reply["registered"]) == (True, len(ids))
    agent = answer(field.send("GET", "/v1/agent/$did", **names))
    expected = [Template(one).substitute(names, owner=owners_part(names["did"])) for one in ids]
    assert [one["id"] for one in agent["capabilities"]] == expected
    assert [one["description"] for one in agent["capabilities"]] == ["Sums up", "Counts"][
        : len(ids)
    ]
    said = (agent.get("metadata", {}).get("name"), agent["version"], agent["availability"])
    assert said == is_known_by


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/agents/register", '{"acard":{"did":"$did","endpoint":"",$rest}}'),
        ("/v1/agents/register", '{"acard":{"did":"$did",$rest}}'),
        ("/v1/agent/register", '{"did":"$did","endpoint":"",$rest}'),
    ],
)
def test_an_endpoint_is_absent_in_the_flat_form_alone_and_never_empty(
    payer: Caller, path: str, body: str
) -> None:
    """"""
    rest = '"version":1,"capabilities":[{"id":"cap.field.v1","description":""}]'
    sent = Template(body).substitute(did=unique("did:net:field-"), rest=rest).encode()
    problem = refusal(payer.http.post(path, content=sent), 400, "INVALID_REQUEST")
    assert [item["path"] for item in problem["errors"]] == ["acard.endpoint"]


def test_an_agent_without_an_endpoint_is_changed_and_comes_to_have_one(
    field: FieldClient, payer: Caller
) -> None:
    """What is not there is not asked for by a change of something else."""
    did = unique("did:net:field-")
    body = '{"did":"$did","capabilities":[{"description":"d"}]}'
    answer(field.send("POST", "/v1/agent/register", body, key=payer.key, did=did))
    path = "/v1/agents/$did"
    for change, said in (
        ('{"version":2}', (2, "", "offline")),
        ('{"endpoint":"http://127.0.0.1:9"}', (2, "http://127.0.0.1:9", "available")),
    ):
        answer(field.send("PATCH", path, change, key=payer.key, did=did))
        agent = answer(field.send("GET", path, did=did))
        assert (agent["version"], agent["endpoint"], agent["availability"]) == said
    refused = field.send("PATCH", path, '{"endpoint":""}', key=payer.key, did=did)
    refusal(refused, 400, "INVALID_REQUEST")


@pytest.mark.parametrize("is_by_token", [False, True], ids=["key", "token"])
def test_a_heartbeat_is_answered_with_the_share_that_is_free(
    field: FieldClient, payer: Caller, is_by_token: bool
) -> None:
    did = unique("did:net:field-")
    body = '{"did":"$did","endpoint":"http://127.0.0.1:9","capabilities":[{"description":"d"}]}'
    made = answer(field.send("POST", "/v1/agent/register", body, key=payer.key, did=did))
    key = made["heartbeatToken"] if is_by_token else payer.key
    for sent, share in (
        ('{"did":"$did","load":0.5,"latency_ms":250,"queue_depth":5,"port":8080}', 0.6),
        ('{"did":"$did","load":1,"latency_ms":5000,"queue_depth":99}', 0),
        ('{"did":"$did","load":0,"latency_ms":0,"queue_depth":0}', 1),
    ):
        reply = answer(field.send("POST", "/v1/heartbeat", sent, key=key, did=did))
        assert (reply["ok"], reply["availability"]) == (True, share)
    live = answer(field.send("GET", "/v1/agents/$did", did=did))["live"]
    assert (live["load"], live["queueDepth"], live["latency_ms"]) == (0, 0, 0)


# -- tasks and results -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        '{"description":"[$capability] Sum up"}',
        '{"description":"[$capability] Sum up","budget":2}',
        '{"description":"[$capability] Sum up","budget":0.5,"webhookUrl":"http://127.0.0.1:9/x"}',
    ],
)
def test_a_task_is_published_and_read(
    field: FieldClient, payer: Caller, make_agent: MakeAgent, body: str
) -> None:
    agent = make_agent(price_cents=50)
    names = {"capability": agent.capability}
    made = answer(field.send("POST", "/v1/tasks/publish", body, key=payer.key, **names))
    payer.finished(f"/v1/workflows/{made['workflowId']}")
    task = answer(field.send("GET", "/v1/tasks/$id", key=payer.key, id=made["taskId"]))
    assert (task["status"], task["error"]) == ("completed", None)
    assert task["result"]["inputs"] == {"description": "Sum up"}


PRICED_50 = '{"description":"[$capability] Sum up","budget":10}'


@pytest.mark.parametrize(
    ("body", "amount"),
    [
        ('{"agentDid":"$agent"}', 0.5),
        ('{"agentDid":"$agent","amount":0.3}', 0.3),
        ('{"agentDid":"$agent","amount":"0.3","etaMs":1500}', 0.3),
    ],
)
def test_a_bid_for_a_task_that_has_its_agent_is_kept(
    field: FieldClient,
    payer: Caller,
    make_agent: MakeAgent,
    make_caller: MakeCaller,
    body: str,
    amount: float,
) -> None:
    owner = make_caller()
    agent = make_agent(later, owner=owner, price_cents=50)
    names = {"capability": agent.capability, "agent": agent.did}
    made = answer(field.send("POST", "/v1/tasks/publish", PRICED_50, key=payer.key, **names))
    names |= {"task": made["taskId"], "workflow": made["workflowId"]}
    path = "/v1/tasks/$task/bid"
    placed = answer(field.send("POST", path, body, key=owner.key, **names))
    assert (placed["ok"], placed["counted"], placed["bidAmount"]) == (True, False, amount)
    refusal(field.send("POST", path, body, key=owner.key, **names), 409, "CONFLICT")
    audit = "/v1/audit?eventType=bid.placed&targetId=$workflow"
    for party in (payer, owner):
        (entry,) = answer(field.send("GET", audit, key=party.key, **names))["entries"]
        kept = entry["payload"]["events"][0]["payload"]
        assert (kept["agentDid"], kept["bidCredits"], kept["isCounted"]) == (
            agent.did,
            str(amount),
            False,
        )


def test_a_bid_at_an_auction_is_by_default_the_agents_own_price(
    field: FieldClient, payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    owner, agent = bidder(make_agent, make_caller, unique("cap.field.") + ".v1")
    task = (
        '{"description":"[$capability] Sum up","budget":1,'
        '"selection":"auction","auctionWindowMs":60000}'
    )
    names = {"capability": agent.capability, "agent": agent.did}
    made = answer(field.send("POST", "/v1/tasks/publish", task, key=payer.key, **names))
    path, body = "/v1/tasks/$task/bid", '{"agentDid":"$agent"}'
    placed = answer(field.send("POST", path, body, key=owner.key, task=made["taskId"], **names))
    assert (placed["ok"], placed["counted"], placed["bidAmount"]) == (True, True, 0.1)


def test_an_agent_without_a_fixed_price_says_what_it_bids(
    payer: Caller, make_agent: MakeAgent
) -> None:
    agent = make_agent(owner=payer, price={"description": "has none"})
    made = answer(
        payer.http.post("/v1/tasks/publish", json={"description": f"[{agent.capability}]"})
    )
    refused = payer.http.post(f"/v1/tasks/{made['taskId']}/bid", json={"agentDid": agent.did})
    problem = refusal(refused, 400, "INVALID_REQUEST")
    assert [item["path"] for item in problem["errors"]] == ["bidAmount"]


@pytest.mark.parametrize(
    ("body", "paid"),
    [
        ("{}", 0.5),
        ('{"payouts":[{"agentDid":"$agent","amount":0.2}]}', 0.5),
        ('{"payouts":[{"agentDid":"$agent","amount":"9"}]}', 9),
    ],
    ids=["its price", "at least its price", "what is named"],
)
def test_settle_pays_the_agent_that_has_accepted_a_task_and_closes_it(
    field: FieldClient,
    admin: Caller,
    payer: Caller,
    make_agent: MakeAgent,
    body: str,
    paid: float,
) -> None:
    agent = make_agent(later, price_cents=50)
    names = {"capability": agent.capability, "agent": agent.did}
    made = answer(field.send("POST", "/v1/tasks/publish", PRICED_50, key=payer.key, **names))
    names["task"] = made["taskId"]
    wait_node(payer, f"/v1/workflows/{made['workflowId']}", "running", "task")
    path = "/v1/tasks/$task/settle"
    for refused in (
        '{"payouts":[{"agentDid":"did:net:another","amount":0.2}]}',
        '{"payouts":[{"agentDid":"$agent","amount":0}]}',
        '{"payouts":[{"agentDid":"$agent","amount":-1}]}',
        '{"payouts":[{"agentDid":"$agent","amount":6},{"agentDid":"$agent","amount":6}]}',
        '{"payouts":[]}',
        '{"amount":0.2}',
    ):
        answered = field.send("POST", path, refused, key=payer.key, **names)
        refusal(answered, 400, "INVALID_REQUEST")
    settled = answer(field.send("POST", path, body, key=payer.key, **names))
    assert (settled["ok"], settled["paid"]) == (True, [{"agentDid": agent.did, "amount": paid}])
    refusal(field.send("POST", path, body, key=payer.key, **names), 409, "ALREADY_SETTLED")
    task = answer(field.send("GET", "/v1/tasks/$task", key=payer.key, **names))
    assert (task["status"], task["spentCredits"]) == ("completed", paid)
    assert payer.balance()["balance"] == 100 - paid
    audit = f"/v1/audit?eventType=payment.settled&targetId={made['workflowId']}"
    (entry,) = answer(payer.http.get(audit))["entries"]
    assert entry["actorDid"] == payer.did, "the agent has not handed a result in"
    earned = answer(admin.http.get(f"/v1/balances/{agent.did}"))["balance"]
    assert earned == pytest.approx(0.95 * paid)
    late = payer.http.post("/v1/workflows/nodeResult", json=handed_in(agent.stub.dispatches[0]))
    refusal(late, 409, "ALREADY_SETTLED")
    assert answer(admin.http.get(f"/v1/balances/{agent.did}"))["balance"] == earned


@pytest.mark.parametrize(
    "body",
    [
        '{"workflowId":"$workflow","nodeId":"task","agentDid":"$agent","status":"success",'
        '"result":{"n":1},"metrics":{"latency_ms":3},"resultId":"$token"}',
        '{"workflowId":"$workflow","taskId":"$task","nodeId":"task","capabilityId":"$capability",'
        '"agentDid":"$agent","status":"ok","result":{"n":1},"metrics":{},"resultId":"$token",'
        '"signature":null,"publicKey":null}',
    ],
    ids=["required", "all"],
)
def test_a_result_is_handed_in_without_a_key(
    field: FieldClient, payer: Caller, make_agent: MakeAgent, body: str
) -> None:
    agent = make_agent(later, price_cents=50)
    task = '{"description":"[$capability] Sum up"}'
    names = {"capability": agent.capability}
    made = answer(field.send("POST", "/v1/tasks/publish", task, key=payer.key, **names))
    agent.stub.wait_dispatched()
    names |= {"workflow": made["workflowId"], "task": made["taskId"], "agent": agent.did}
    names["token"] = agent.stub.dispatches[0]["resultId"]
    assert answer(field.send("POST", "/v1/workflows/nodeResult", body, **names))["success"]
    payer.finished(f"/v1/workflows/{made['workflowId']}")
    record = answer(field.send("GET", "/v1/tasks/$id", key=payer.key, id=made["taskId"]))
    assert (record["status"], record["result"]) == ("completed", {"n": 1})
    assert record["spentCredits"] == 0.5


# -- money -----------------------------------------------------------------------------------------


def test_balance_and_history(field: FieldClient, payer: Caller, make_agent: MakeAgent) -> None:
    record = payer.run({"nodes": {"a": {"capabilityId": make_agent().capability}}})
    names = {"did": payer.did}
    balance = answer(field.send("GET", "/v1/balances/$did", key=payer.key, **names))
    assert balance == {
        "ownerDid": payer.did,
        "balance": 99.9,
        "credits": 99.9,
        "currency": "CREDITS",
        "pending": 0,
    }
    path = "/v1/ledger/$did/history?limit=2"
    held, deposited = answer(field.send("GET", path, key=payer.key, **names))["events"]
    for event, amount, kind, workflow_id in (
        (held, 0.1, "escrow_hold", record["id"]),
        (deposited, 100, "deposit", None),
    ):
        expected = {
            "ownerDid": payer.did,
            "amount": amount,
            "currency": "CREDITS",
            "eventType": kind,
            "workflowId": workflow_id,
            "nodeName": None,
        }
        assert {name: event[name] for name in expected} == expected
        assert event["id"] and event["createdAt"] and isinstance(event["description"], str)


# -- DELETE ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        '{"name":"nightly","cronExpression":"0 3 * * *","workflowTemplate":'
        '{"capability":"$capability","input":{"a":1}}}',
        '{"name":"nightly","cronExpression":"0 3 * * 1-5","workflowTemplate":'
        '{"capability":"$capability","input":{"a":1}},"timezone":"Europe/Berlin","maxRuns":5}',
    ],
)
def test_a_schedule_is_made_listed_and_deleted(
    field: FieldClient, make_caller: MakeCaller, body: str
) -> None:
    owner, names = make_caller(), {"capability": unique("cap.field.") + ".v1"}
    made = answer(field.send("POST", "/v1/schedules", body, key=owner.key, **names))
    assert made["id"] == made["scheduleId"]
    assert made["nextRunAt"].endswith("Z")
    listed = answer(field.send("GET", "/v1/schedules", key=owner.key))["schedules"]
    assert [(one["id"], one["nextRunAt"]) for one in listed] == [(made["id"], made["nextRunAt"])]
    target = f"/v1/schedules/{made['id']}"
    assert answer(field.send("DELETE", target, key=owner.key))["success"] is True
    assert answer(field.send("GET", "/v1/schedules", key=owner.key))["schedules"] == []


def test_a_DELETE_without_a_body_answers_success(
    field: FieldClient, payer: Caller, make_agent: MakeAgent
) -> None:
    did = make_agent(owner=payer).did
    reply = answer(field.send("DELETE", "/v1/agents/$did", key=payer.key, did=did))
    assert reply["success"] is True


def test_every_DELETE_takes_no_body_and_promises_success() -> None:
    """Each reply in these tests is held against the document."""
    document = openapi_document(all_operations(), "0")
    for path, operations in document["paths"].items():
        if "delete" in operations:
            assert "requestBody" not in operations["delete"], path
            reply = operations["delete"]["responses"]["200"]["content"]["application/json"]
            schema = document["components"]["schemas"][reply["schema"]["$ref"].split("/")[-1]]
            assert schema["properties"]["success"]["const"] is True, path
            assert "success" in schema["required"], path
