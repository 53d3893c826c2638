"""Both clients against a service on loopback."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from nacl.signing import SigningKey

from callboard import (
    AsyncClient,
    CallboardError,
    Client,
    OutcomeUnknown,
    RateLimited,
    StillRunning,
    Unavailable,
    WorkflowFailed,
)
from callboard.kit.result_signing import ResultSigner
from callboard.location import DidKey
from core.trust.did_key import did_of_key
from core.trust.identity.card_signature import secret_hash, signed_bytes
from core.trust.requests.request_signature import (
    DIGEST,
    METHOD,
    TARGET,
    content_digest,
    signed_text,
)
from core.trust.requests.signature_fields import read_signature
from core.trust.signatures import is_signed_by_key
from tests.callboard.scripted_service import Asked, Scripted, ScriptedService

DOCUMENTATION = (Path(__file__).resolve().parents[2] / "docs" / "client.md").read_text()


def test_publish_sends_the_manifest_and_the_key(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"workflowId": "w", "taskId": "t", "status": "pending"})]
    with Client(service.url, "secret") as client:
        reply = client.publish({"nodes": {"a": {}}}, wait_s=5)
    assert reply["workflowId"] == "w"
    (asked,) = service.asked
    assert (asked.method, asked.target) == ("POST", "/v1/workflows/publish")
    assert asked.body == {"nodes": {"a": {}}}
    assert asked.headers["x-api-key"] == "secret"
    assert asked.headers["prefer"] == "wait=5"


def test_publish_survives_a_busy_service_with_one_key(service: ScriptedService) -> None:
    busy = Scripted(503, {"code": "OVERLOADED"}, {"Retry-After": "0"})
    service.script = [busy, Scripted(200, {"workflowId": "w"})]
    with Client(service.url) as client:
        assert client.publish({})["workflowId"] == "w"
    keys = [asked.headers["idempotency-key"] for asked in service.asked]
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_list_filters_travel_as_query(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"workflows": []}), Scripted(200, {"entries": []})]
    with Client(service.url) as client:
        client.workflows(status="failed", limit=2)
        client.audit(limit=1, start_time=1_001)
    assert [asked.target for asked in service.asked] == [
        "/v1/workflows?status=failed&limit=2",
        "/v1/audit?limit=1&startTime=1970-01-01T00%3A00%3A01.001000%2B00%3A00",
    ]


def test_a_reply_that_is_no_json_is_an_error(service: ScriptedService) -> None:
    service.script = [Scripted(200, "<html>")]
    with Client(service.url) as client, pytest.raises(CallboardError) as refused:
        client.balance()
    assert refused.value.code == "HTTP_200"


def test_health_is_read_also_while_a_part_is_down(service: ScriptedService) -> None:
    service.script = [Scripted(503, {"status": "unhealthy"})]
    with Client(service.url) as client:
        assert client.health() == {"status": "unhealthy"}


@pytest.mark.slow  # all retries of a refused connection, 3 s
def test_no_service_is_the_same_error_with_status_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(CallboardError) as refused:
        client.balance()
    assert (refused.value.code, refused.value.status) == ("UNREACHABLE", 0)
    assert str(port) in refused.value.detail


RUNNING = {"id": "w", "status": "running", "nodes": {}}
SUCCESS = {"id": "w", "status": "success", "nodes": {"a": {"status": "success", "result": {}}}}
FAILED = {"id": "w", "status": "failed", "nodes": {}, "error": {"code": "BUDGET_EXCEEDED"}}
PUBLISHED = Scripted(200, {"workflowId": "w", "taskId": "t", "status": "pending"})


def test_a_handle_waits_for_the_result(service: ScriptedService) -> None:
    service.script = [PUBLISHED, Scripted(200, RUNNING), Scripted(200, SUCCESS)]
    with Client(service.url) as client:
        handle = client.publish({"nodes": {"a": {}}})
        assert handle.workflow_id == "w"
        assert handle.result().results == {"a": {}}
    assert [asked.target for asked in service.asked[1:]] == ["/v1/workflows/w"] * 2


def test_a_handle_raises_for_a_workflow_that_failed(service: ScriptedService) -> None:
    service.script = [PUBLISHED, Scripted(200, FAILED)]
    with Client(service.url) as client, pytest.raises(WorkflowFailed) as failed:
        client.publish({}).result()
    assert failed.value.code == "BUDGET_EXCEEDED"
    assert failed.value.record == FAILED


def test_a_handle_gives_up_after_its_timeout(service: ScriptedService) -> None:
    service.script = [PUBLISHED, Scripted(200, RUNNING)]
    with Client(service.url) as client, pytest.raises(StillRunning):
        client.publish({}).result(timeout_s=0)


def test_a_handle_that_waited_already_asks_no_more(service: ScriptedService) -> None:
    service.script = [Scripted(200, {**SUCCESS, "workflowId": "w"})]
    with Client(service.url) as client:
        assert client.publish({}, wait_s=5).result().status == "success"
    assert len(service.asked) == 1


def test_the_asynchronous_handle_does_the_same(service: ScriptedService) -> None:
    service.script = [PUBLISHED, Scripted(200, SUCCESS), PUBLISHED, Scripted(200, FAILED)]

    async def results() -> str:
        async with AsyncClient(service.url) as client:
            handle = await client.publish({})
            record = await handle.result()
            with pytest.raises(WorkflowFailed):
                await (await client.publish({})).result()
            return record.status

    assert asyncio.run(results()) == "success"


PAGES = [
    Scripted(200, {"workflows": [{"id": "1"}, {"id": "2"}], "limit": 2, "nextCursor": "c1"}),
    Scripted(200, {"workflows": [{"id": "3"}], "limit": 2, "nextCursor": None}),
]


def test_an_iterator_reads_every_page(service: ScriptedService) -> None:
    service.script = [*PAGES, *PAGES]

    async def read() -> list[str]:
        async with AsyncClient(service.url) as client:
            return [row.id async for row in client.iterate_workflows(limit=2)]

    with Client(service.url) as client:
        rows = client.iterate_workflows(limit=2)
        assert next(rows).id == "1"
        assert len(service.asked) == 1, "a page is read when it is needed"
        assert [row.id for row in rows] == ["2", "3"]
    assert asyncio.run(read()) == ["1", "2", "3"]
    pages = ["/v1/workflows?limit=2", "/v1/workflows?limit=2&cursor=c1"]
    assert [asked.target for asked in service.asked] == pages * 2


@pytest.mark.parametrize(
    ("plural", "first", "iterate"),
    [
        ("agents", "/v1/agents?limit=5&offset=7", lambda c: c.iterate_agents(limit=5, offset=7)),
        ("revocations", "/v1/revoked?limit=5", lambda c: c.iterate_revocations(limit=5)),
        ("entries", "/v1/audit?limit=5", lambda c: c.iterate_audit(limit=5)),
        ("invoices", "/v1/invoices?limit=5", lambda c: c.iterate_invoices(limit=5)),
    ],
)
def test_an_iterator_goes_on_after_a_page_that_the_service_ended_early(
    service: ScriptedService, plural: str, first: str, iterate: Callable[[Client], Any]
) -> None:
    service.script = [
        Scripted(200, {plural: [{"id": 1}, {"id": 2}], "limit": 5, "nextCursor": "c"}),
        Scripted(200, {plural: [{"id": 3}], "limit": 5, "nextCursor": None}),
    ]
    with Client(service.url) as client:
        assert [row["id"] for row in iterate(client)] == [1, 2, 3]
    assert [asked.target for asked in service.asked] == [
        first,
        f"{first.partition('?')[0]}?limit=5&cursor=c",
    ]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_an_error_and_never_followed(service: ScriptedService, status: int) -> None:
    """Its target would get the key, and a body of its own would pass for the answer."""
    elsewhere = {"Location": f"{service.url}/elsewhere"}
    service.script = [Scripted(status, {"success": True, "id": 1}, elsewhere)] * 3
    with (
        httpx.Client(follow_redirects=True, trust_env=False) as http,
        Client(service.url, "key", http=http) as client,
    ):
        for ask in (lambda: client.deposit(5), client.balance, client.health):
            with pytest.raises(CallboardError, match="redirect to") as refused:
                ask()
            assert (refused.value.code, refused.value.status) == (f"HTTP_{status}", status)
    assert [asked.target for asked in service.asked] == [
        "/v1/ledger/deposit",
        "/v1/ledger/balance",
        "/health",
    ]


def deployed(home: Path, service: ScriptedService) -> Path:
    """Write the files of a deployment that is this service."""
    home.mkdir(parents=True)
    (home / "url").write_text(service.url + "\n")
    (home / "admin.key").write_text("folder-key\n")
    return home


CLIENT = """
from callboard import Client
print(Client().balance().balance)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("has_url", "has_key", "key"),
    [(False, False, "folder-key"), (False, True, "own-key"), (True, False, None)],
)
def test_a_client_without_arguments_finds_the_deployment(
    service: ScriptedService, tmp_path: Path, has_url: bool, has_key: bool, key: str | None
) -> None:
    deployed(tmp_path / ".local" / "share" / "callboard" / "default", service)
    service.script = [Scripted(200, {"balance": 5})]
    unset = ("CALLBOARD_URL", "CALLBOARD_API_KEY")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment["HOME"] = str(tmp_path)
    if has_url:
        environment["CALLBOARD_URL"] = service.url
    if has_key:
        environment["CALLBOARD_API_KEY"] = "own-key"
    command = [sys.executable, "-c", CLIENT]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.stdout == "5\n", run.stderr
    assert service.asked[0].headers.get("x-api-key") == key


def test_a_heartbeats_token_is_sent_instead_of_the_key(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"ok": True})]
    with Client(service.url, "key") as client:
        client.heartbeat("did:net:a", status="busy", load=0.5, token="t")
    (asked,) = service.asked
    assert asked.headers["authorization"] == "Bearer t"
    assert "x-api-key" not in asked.headers
    assert asked.body == {"status": "busy", "load": 0.5}


def test_a_caller_can_send_with_an_http_client_of_their_own(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"balance": 1}), Scripted(200, {"balance": 2})]
    with httpx.Client(headers={"x-team": "blue"}, trust_env=False) as http:
        with Client(service.url, "key", http=http) as client:
            client.balance()
        assert not http.is_closed, "it is the caller's"
        Client(service.url, "key", http=http).balance()
    assert [asked.headers["x-team"] for asked in service.asked] == ["blue", "blue"]
    assert service.asked[0].headers["x-api-key"] == "key"


def test_requests_go_through_the_given_proxy(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"balance": 1})]
    with Client("http://callboard.example", proxy=service.url) as client:
        client.balance()
    assert service.asked[0].target == "http://callboard.example/v1/ledger/balance"


def test_attempts_can_be_bounded_and_the_refusal_says_when_to_come_again(
    service: ScriptedService,
) -> None:
    service.script = [Scripted(429, {"code": "RATE_LIMITED"}, {"Retry-After": "17"})]
    with Client(service.url, attempts_max=1) as client, pytest.raises(RateLimited) as refused:
        client.balance()
    assert refused.value.retry_after_s == 17
    assert len(service.asked) == 1


def test_no_answer_within_the_timeout_leaves_a_write_open(service: ScriptedService) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Client(
            f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.05, attempts_max=1
        ) as client,
    ):
        with pytest.raises(OutcomeUnknown):
            client.deposit(1)
        with pytest.raises(Unavailable) as refused:
            client.balance()
    assert type(refused.value) is Unavailable, "a read has no outcome"


SEED = "ed25519:" + base64.b64encode(b"s" * 32).decode()
PEM = "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n".format(
    base64.b64encode(bytes.fromhex("302e020100300506032b657004220420") + b"s" * 32).decode()
)


def is_signed(asked: Asked, url: str, body: bytes) -> bool:
    """Say whether a request has the signature of the seed over what was asked."""
    fields = read_signature(
        asked.headers["signature-input"].encode(), asked.headers["signature"].encode()
    )
    values = {METHOD: asked.method, TARGET: url + asked.target}
    if body:
        assert asked.headers["content-digest"] == content_digest(body)
        values[DIGEST] = asked.headers["content-digest"]
    assert set(fields.covered) == set(values)
    message = signed_text(fields.covered, fields.parameters, values)
    return is_signed_by_key(bytes(SigningKey(b"s" * 32).verify_key), message, fields.signature)


def test_a_did_key_signs_every_request_anew(service: ScriptedService) -> None:
    busy = Scripted(503, {"code": "OVERLOADED"}, {"Retry-After": "0"})
    service.script = [busy, Scripted(200, {"workflowId": "w"}), Scripted(200, {"workflows": []})]
    with Client(service.url, private_key=SEED, did="did:net:me") as client:
        client.publish({"intent": "ä"})
        client.workflows(status="failed", limit=2)
    assert not any("x-api-key" in asked.headers for asked in service.asked)
    body = '{"intent":"ä"}'.encode()
    sent = [is_signed(asked, service.url, body) for asked in service.asked[:2]]
    assert [*sent, is_signed(service.asked[2], service.url, b"")] == [True] * 3
    inputs = {asked.headers["signature-input"] for asked in service.asked}
    assert len(inputs) == 3, "a nonce each"
    assert all('keyid="did:net:me"' in given for given in inputs)


async def test_the_asynchronous_client_signs_as_the_did_key_of_its_key(
    service: ScriptedService, tmp_path: Path
) -> None:
    service.script = [Scripted(200, {"balance": 1})]
    file = tmp_path / "agent.pem"
    file.write_text(PEM)

    async with AsyncClient(service.url, private_key=file) as client:
        await client.balance()
    (asked,) = service.asked
    assert is_signed(asked, service.url, b"")
    did = did_of_key(bytes(SigningKey(b"s" * 32).verify_key))
    assert f'keyid="{did}"' in asked.headers["signature-input"]


def test_a_heartbeats_token_is_sent_instead_of_a_signature(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"ok": True})]
    with Client(service.url, private_key=SEED) as client:
        client.heartbeat("did:net:a", status="busy", token="t")
    assert "signature" not in service.asked[0].headers


OWN_DID = did_of_key(bytes(SigningKey(b"s" * 32).verify_key))


def is_card_signed(body: Any, url: str, owner_did: str) -> bool:
    """Say whether the key of these tests has signed a registration for a service and an owner."""
    proof = body["cardProof"]
    assert (proof["audience"], proof["ownerDid"]) == (url, owner_did)
    message = signed_bytes(body["acard"], proof)
    signature = base64.b64decode(body["acardSignature"].removeprefix("ed25519:"))
    return is_signed_by_key(bytes(SigningKey(b"s" * 32).verify_key), message, signature)


def test_a_client_signs_the_card_of_its_own_did_key(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"did": OWN_DID})] * 2
    with Client(service.url, private_key=SEED) as client:
        for _ in range(2):
            client.register_agent({"did": OWN_DID, "name": "ä"}, signing_secret="hush")
    first, second = (asked.body for asked in service.asked)
    assert is_card_signed(first, service.url, OWN_DID)
    assert first["cardProof"]["signingSecretSha256"] == secret_hash("hush")
    assert first["signingSecret"] == "hush"
    assert second["cardProof"]["counter"] > first["cardProof"]["counter"]


@pytest.mark.parametrize("did", ["did:net:other", "did:key:z6Mkother"])
def test_a_client_signs_no_card_of_another_did(service: ScriptedService, did: str) -> None:
    service.script = [Scripted(200, {"did": did})]
    with Client(service.url, private_key=SEED) as client:
        client.register_agent({"did": did})
    assert service.asked[0].body == {"acard": {"did": did}}
    assert service.asked[0].headers["idempotency-key"]


async def test_a_key_that_is_given_signs_for_the_owner_that_is_named(
    service: ScriptedService,
) -> None:
    service.script = [Scripted(200, {"did": OWN_DID})]

    async with AsyncClient(service.url, "k") as client:
        with pytest.raises(ValueError, match="owner_did"):
            await client.register_agent({"did": OWN_DID}, private_key=SEED)
        await client.register_agent({"did": OWN_DID}, private_key=SEED, owner_did="did:net:payer")
    (asked,) = service.asked
    assert is_card_signed(asked.body, service.url, "did:net:payer")
    assert asked.headers["x-api-key"] == "k"


@pytest.mark.parametrize("text", ["", "c2hvcnQ=", PEM.replace("MC4C", "MC4D"), "?"])
def test_what_is_no_private_key_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(ValueError, match=r".") as refused:
        Client("http://127.0.0.1:1", private_key=file)
    assert text == "" or text not in str(refused.value)


def test_one_kind_of_key_is_given() -> None:
    with pytest.raises(ValueError, match="one of them"):
        Client("http://127.0.0.1:1", "key", private_key=SEED)


def test_a_reason_is_sent_with_what_changes_something(service: ScriptedService) -> None:
    service.script = [Scripted(200, {"success": True}), Scripted(200, {"balance": 1})]
    with Client(service.url, "key", reason="Lost.") as client:
        client.revoke_key("k")
        client.balance()
    assert [asked.headers.get("x-callboard-reason") for asked in service.asked] == ["Lost.", None]


def test_a_wait_for_a_rate_limit_is_logged_and_told(
    service: ScriptedService, caplog: pytest.LogCaptureFixture
) -> None:
    limited = Scripted(429, {"code": "RATE_LIMITED"}, {"Retry-After": "0"})
    busy = Scripted(503, {"code": "OVERLOADED"}, {"Retry-After": "0"})
    waits: list[float] = []
    service.script = [limited, busy, Scripted(200, {"balance": 1})]
    with Client(service.url, on_wait=waits.append) as client:
        client.balance()
    (said,) = [one.getMessage() for one in caplog.records if one.name == "callboard"]
    assert (
        said == f"rate limit: waiting {waits[0]:.1f} s before GET /v1/ledger/balance is sent again"
    )
    assert len(waits) == 1, "an overloaded service is no rate limit"

    async def ask() -> None:
        async with AsyncClient(service.url, on_wait=waits.append) as client:
            await client.balance()

    service.script = [limited, Scripted(200, {"balance": 1})]
    asyncio.run(ask())
    assert len(waits) == 2


@pytest.mark.parametrize("text", [SEED + "\n", PEM], ids=["raw", "pem"])
def test_a_private_key_is_a_key_or_the_path_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "agent.key").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in (text, "agent.key", "~/agent.key", str(tmp_path / "agent.key"), Path("agent.key")):
        assert DidKey.read(given).seed == b"s" * 32
        if isinstance(given, str):
            assert ResultSigner(given).private_key == base64.b64encode(b"s" * 32).decode()
            Client.rotate_agent_key("did:a:b", "k", private_key=given)


@pytest.mark.parametrize("given", ["nowhere.key", "c2VjcmV0", "\0", "x" * 5_000, ""])
def test_what_is_no_private_key_is_refused_and_not_repeated(given: str) -> None:
    with pytest.raises(ValueError, match="neither base64 of 32 bytes nor PEM") as refused:
        Client("http://127.0.0.1:1", private_key=given)
    assert not given or given not in str(refused.value)


def test_every_method_that_the_documentation_lists_exists_and_every_method_has_a_text() -> None:
    rows = DOCUMENTATION.split("## Methods")[1].split("\n## ")[0].splitlines()
    listed = {name for row in rows if row[0:3] == "| `" for name in re.findall(r"`(\w+)`", row)}
    assert listed - {"aclose", "AsyncClient"} - set(dir(Client)) == set()
    assert [
        name for name in dir(Client) if name[0] != "_" and not getattr(Client, name).__doc__
    ] == []
