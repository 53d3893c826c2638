"""Callers of the session's deployment: an administrator, and payers with keys and credits."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from callboard.transport import tls_context_for
from tests.contract.described import REPLIES
from tests.contract.stub_agent import Answer, StubAgent, stub_agent, succeed
from tests.faults.victims import superuser_url
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]
# For a broken program, not for a slow machine.
PATIENCE_S = 120.0
POLL_S = 0.02
# What a failed test shows of the service's logs.
_LOG_LINES, _LOG_LINE_MAX, _LOG_TAIL_BYTES = 60, 2_000, 1024 * 1024
_BEGAN_S: pytest.StashKey[float] = pytest.StashKey()


@dataclass(frozen=True)
class Caller:
    """A caller with a key. `http` sends it with every request."""

    did: str
    key: str
    key_id: str
    http: httpx.Client

    def balance(self) -> Json:
        """Return the caller's balance."""
        return answer(self.http.get("/v1/ledger/balance"))

    def publish(self, manifest: Json, **headers: str) -> httpx.Response:
        """Publish a manifest."""
        return self.http.post("/v1/workflows/publish", json=manifest, headers=headers)

    def cancel(self, path: str, **headers: str) -> httpx.Response:
        """Cancel the workflow of this path, as its user asks."""
        body = {"reason": "user_request"}
        return self.http.post(f"{path}/cancel", json=body, headers=headers)

    def run(self, manifest: Json) -> Json:
        """Publish a manifest and return the record once it has ended.

        The answer to a publish that waits is made of what the owner tells, a read of the rows: both
        show the same.
        """
        record = answer(self.publish(manifest, Prefer="wait=30"))
        if record.get("completedAt"):
            record.pop("warnings", None)  # of the publish, not of the workflow
            assert answer(self.http.get(f"/v1/workflows/{record['id']}")) == record
            return record
        return self.finished(f"/v1/workflows/{record['workflowId']}")

    def finished(self, path: str) -> Json:
        """Return the record of a workflow once it has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            record = answer(self.http.get(path, headers={"Prefer": "wait=30"}))
            if record["completedAt"]:
                return record
            assert time.monotonic() < deadline, record


def answer(response: httpx.Response, status: int = 200) -> Json:
    """Return the JSON body of a response that must have this status."""
    assert response.status_code == status, f"{response.status_code}: {response.text[:2000]}"
    body: Json = response.json()
    return body


def refusal(response: httpx.Response, status: int, code: str) -> Json:
    """Return the problem details of a response that must be this refusal."""
    body = answer(response, status)
    assert response.headers["content-type"] == "application/problem+json"
    assert body["code"] == body["error"] == code, body
    assert body["status"] == status
    assert body["detail"] == body["message"]
    assert {"type", "title", "requestId"} <= set(body)
    return body


def wait(condition: Callable[[], bool], what: str) -> None:
    """Return when the condition holds. It is looked at less often the longer it takes: each look
    is a request, most often.
    """
    deadline, pause_s = time.monotonic() + PATIENCE_S, POLL_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(pause_s)
        pause_s = min(1.3 * pause_s, 10 * POLL_S)


@contextmanager
def asking(caller: Caller, path: str, body: Json, **headers: str) -> Iterator[None]:
    """Send a POST whose client leaves with the block, without a look at the reply."""
    url, text = caller.http.base_url, json.dumps(body).encode()
    sent = {"host": "x", "x-api-key": caller.key, "content-type": "application/json", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    with socket.create_connection((url.host, url.port or 80), timeout=PATIENCE_S) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\n{head}content-length: ".encode())
        connection.sendall(f"{len(text)}\r\n\r\n".encode() + text)
        yield


def unique(prefix: str) -> str:
    """Return a name that no other test of the session uses."""
    return f"{prefix}{uuid.uuid4().hex[:12]}"


def client(
    url: str, key: str | None = None, *, transport: httpx.BaseTransport | None = None
) -> httpx.Client:
    """Return an HTTP client of the deployment; each reply to it is held against the document."""
    return httpx.Client(
        base_url=url,
        headers={"x-api-key": key} if key is not None else {},
        timeout=90.0,
        transport=transport,
        # A context of its own for each of thousands of clients reads the authorities anew, 40 ms.
        verify=tls_context_for(url),
        trust_env=False,
        event_hooks={"response": [REPLIES.check]},
    )


@pytest.fixture(scope="session", autouse=True)
def _keep_replies(request: pytest.FixtureRequest) -> None:
    """Keep every exchange in the file that `--keep-replies` names."""
    kept = request.config.getoption("--keep-replies")
    REPLIES.kept = None if kept is None else Path(kept)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the lines that the service logged during a test to the report of its failure."""
    report = yield
    began_s = item.stash.setdefault(_BEGAN_S, call.start)
    running = getattr(item, "funcargs", {}).get("deployment")
    if report.failed and running is not None:
        lines = logged_since(running.home / "logs", began_s)
        report.sections.append(("Log of the service", "\n".join(lines) or "(no line)"))
    return report


def logged_since(logs: Path, began_s: float) -> list[str]:
    """Return the newest lines of a deployment's logs since a time, from all files, in order.

    Args:
        logs: the folder.
        began_s: seconds since 1970; lines of the second before it count too.
    """
    first = '{"at": "' + time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(began_s))
    found = []
    for file in logs.glob("*.jsonl"):
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - _LOG_TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()
        found += [f"{line} ({file.stem})" for line in lines if line >= first]
    return sorted(line[:_LOG_LINE_MAX] for line in found if line.startswith("{"))[-_LOG_LINES:]


@pytest.fixture(scope="session")
def anonymous(deployment: RunningDeployment) -> Iterator[httpx.Client]:
    """Requests without any credential."""
    with client(deployment.url) as http:
        yield http


@pytest.fixture(scope="session")
def admin(deployment: RunningDeployment) -> Iterator[Caller]:
    """The holder of the first key."""
    with client(deployment.url, deployment.admin_key) as http:
        did = answer(http.get("/v1/ledger/balance"))["ownerDid"]
        yield Caller(did, deployment.admin_key, "", http)


MakeCaller = Callable[..., Caller]


# Not of the session: select() takes no descriptor above 1,023, and each caller has one or more.
@pytest.fixture(scope="module")
def make_caller(deployment: RunningDeployment, admin: Caller) -> Iterator[MakeCaller]:
    """Make a caller with a DID, a key and credits of their own."""
    with ExitStack() as stack:

        def make(credits: float = 0, **key: Any) -> Caller:
            did = unique("did:net:payer-")
            body = {"ownerDid": did, "rateClass": "unlimited", **key}
            made = answer(admin.http.post("/v1/keys", json=body))
            if credits:
                deposit = {"amount": credits, "ownerDid": did}
                answer(admin.http.post("/v1/ledger/deposit", json=deposit))
            http = stack.enter_context(client(deployment.url, made["key"]))
            return Caller(did, made["key"], made["keyId"], http)

        yield make


@pytest.fixture
def payer(make_caller: MakeCaller) -> Caller:
    """A payer with 100 credits and a key with the default scopes."""
    return make_caller(100)


@dataclass(frozen=True)
class RegisteredAgent:
    """An agent of one capability that no other agent offers."""

    did: str
    capability: str
    stub: StubAgent
    card: Json


MakeAgent = Callable[..., RegisteredAgent]


@pytest.fixture
def make_agent(admin: Caller) -> Iterator[MakeAgent]:
    """Start and register an agent; its capability is its own unless one is given."""
    with ExitStack() as stack:

        def make(
            reply: Answer = succeed,
            *,
            price_cents: int = 10,
            price: Json | None = None,
            is_held: bool = False,
            capability: str | None = None,
            owner: Caller | None = None,
            endpoint: str | None = None,
            max_concurrency: int | None = None,
            stake: float = 0,
            **registration: Any,
        ) -> RegisteredAgent:
            stub = stack.enter_context(stub_agent(reply, is_held=is_held))
            offered = capability or unique("cap.test.") + ".v1"
            card = {
                "did": unique("did:net:agent-"),
                "endpoint": endpoint or stub.url,
                "version": 1,
                "capabilities": [
                    {
                        "id": offered,
                        "description": "A test's",
                        **({"price_cents": price_cents} if price is None else price),
                    }
                ],
            }
            if max_concurrency is not None:
                card["maxConcurrency"] = max_concurrency
            body = {"acard": card, **registration}
            by = owner or admin
            answer(by.http.post("/v1/agents/register", json=body))
            if stake:  # its owner's
                staked = {"amount": stake, "agentDid": card["did"]}
                answer(by.http.post("/v1/stakes", json=staked))
            return RegisteredAgent(str(card["did"]), offered, stub, card)

        yield make


@pytest.fixture
def capability() -> str:
    """A capability of this test alone."""
    return unique("cap.test.") + ".v1"


@pytest.fixture
def free_address() -> Iterator[str]:
    """An address on loopback where no process listens, or can listen."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def chain_of(capability: str, names: str = "abc", **settings: Any) -> Json:
    """Return a manifest in which each node takes the inputs of the one before it."""
    nodes: Json = {}
    for position, name in enumerate(names):
        nodes[name] = {"capabilityId": capability, "payload": {"own": name}}
        if position:
            before = names[position - 1]
            nodes[name]["dependsOn"] = [before]
            nodes[name]["inputMappings"] = {"before": f"$.{before}.result.inputs.own"}
    manifest: Json = {"intent": "a chain", "nodes": nodes}
    if settings:
        manifest["settings"] = settings
    return manifest


class Damage:
    """Changes what is stored, which nothing else may."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        connection.execute("SET session_replication_role = replica")  # no trigger looks on

    def refuse_result(self, workflow_id: str, node: str) -> None:
        """Refuse the result of a node's first attempt."""
        self._connection.execute(
            "INSERT INTO callboard.command (id, result, error, detail, created_ms)"
            " VALUES (%s, '{}', 'INTERNAL_ERROR', 'damaged by a test', 0)",
            (f"AttemptSucceeded:{workflow_id}:{node}:1:0",),
        )

    def give_up(self, delivery_id: str) -> None:
        """Give up what is sent to a webhook."""
        self._connection.execute(
            "UPDATE callboard.event_delivery SET status = 'failed' WHERE id = %s", (delivery_id,)
        )

    def break_manifest(self, workflow_id: str) -> None:
        """Leave a manifest that this version refuses to compile."""
        changed = self._connection.execute(
            "UPDATE callboard.workflow SET manifest = replace(manifest, %s, %s) WHERE id = %s",
            ('"nodes":', '"unheardOf":1,"nodes":', workflow_id),
        )
        assert changed.rowcount == 1


@pytest.fixture(scope="session")
def damage(deployment: RunningDeployment) -> Iterator[Damage]:
    """A way to damage what is stored."""
    with psycopg.connect(superuser_url(deployment), autocommit=True) as connection:
        yield Damage(connection)
