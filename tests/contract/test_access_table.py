"""Every operation with every kind of credential: the code is the one that the test's own table says
(`access_table.py`).

What is permitted is answered with anything but 401 and 403: bodies here are empty and ids unknown,
so nothing is done. What belongs to another owner is looked at with that owner's real ids.
Spec: Authentication 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import pytest

from core.records.api.shape import Schemas
from core.trust.access import (
    DEFAULT_SCOPES,
    FREE_TIER,
    READ_TRUST,
    RIGHTS,
    SINGLE_RIGHTS,
    SUGGEST,
)
from serve_app.api import all_operations
from serve_app.http.calls import EVENT_STREAM, Operation
from serve_app.openapi.samples import sample
from tests.contract.access_table import EXEMPT, RIGHTS_OF, operations_of, rights_of
from tests.contract.conftest import (
    Caller,
    MakeCaller,
    answer,
    chain_of,
    client,
    refusal,
    unique,
    wait,
)
from tests.contract.credentials import FREE_TIER_KEY, token
from tests.contract.signers import Signer
from tests.contract.stub_agent import stub_agent, succeed
from tests.platform.deployments import RunningDeployment

OPERATIONS: Final = all_operations()
REFUSALS: Final = {401: "UNAUTHORIZED", 403: "INSUFFICIENT_SCOPE"}
READ_ONLY: Final = tuple(scope for scope in DEFAULT_SCOPES if scope.endswith(":read"))
# With the ids of another owner, where it is not 404, and not 403 for a change of an agent (agents
# are public): what is public, what is the caller's own list or names nothing of the other's, and
# what exists publicly but may not be changed.
OF_ANOTHER: Final = {
    "GET /v1/agents/{did}": 200,
    "GET /v1/agent/{did}": 200,
    "GET /v1/reputation/{did}": 200,
    "GET /v1/revoked/{did}": 200,
    "GET /v1/trust/key-history/{did}": 200,
    "GET /v1/agents/{did}/names": 200,
    "GET /v1/agents/{did}/versions": 200,
    "DELETE /v1/identity/inheritance/{did}": 403,
    "PUT /v1/identity/guardians/{did}": 403,
    # Without a memberDid.
    "DELETE /v1/federation/subnets/{subnet_id}/members": 400,
}
UNKNOWN: Final = {
    "subnet_id": "0199c0de-0000-7000-8000-000000000001",
    "policy_id": "0199c0de-0000-7000-8000-000000000001",
    "workflow_id": "0199c0de-0000-7000-8000-000000000001",
    "task_id": "0199c0de-0000-7000-8000-000000000001",
    "invoice_id": "0199c0de-0000-7000-8000-000000000001",
    "dispute_id": "0199c0de-0000-7000-8000-000000000001",
    "recovery_id": "0199c0de-0000-7000-8000-000000000001",
    "schedule_id": "0199c0de-0000-7000-8000-000000000001",
    "trigger_id": "0199c0de-0000-7000-8000-000000000001",
    "trace_id": "0199c0de000070008000000000000001",
    "node": "a",
    "name": "no-such-name",
    "did": "did:net:nobody-here",
    "key_id": "no-such-key",
    "audit_id": "999999999",
    "capability_id": "cap.test.none.v1",
    "version": "1.0.0",
    "machine": "0" * 12,
    "receipt": "rcpt_1",
    "token": "no-such-token",
    "webhook_id": "0199c0de-0000-7000-8000-000000000001",
    "delivery_id": "0199c0de-0000-7000-8000-000000000001",
    "peer_id": "no-such-peer",
}


@dataclass(frozen=True)
class Credential:
    """A kind of credential. `scopes`: its rights; None: it is none that is accepted."""

    http: httpx.Client
    scopes: frozenset[str] | None
    is_given: bool = True


def name_of(operation: Operation) -> str:
    return f"{operation.method} {operation.path}"


def expected(operation: str, credential: Credential) -> int:
    """Return the code that the table says: 401, 403, or 0 for what is permitted."""
    opening = rights_of(operation)
    is_wrong = credential.scopes is None and credential.is_given
    if opening is None:
        return 401 if is_wrong and operation not in operations_of(EXEMPT) else 0
    if credential.scopes is None:
        return 401
    return 0 if credential.scopes & {*opening, "admin"} else 403


def ask(
    http: httpx.Client, operation: Operation, ids: dict[str, str], body: dict[str, Any]
) -> httpx.Response:
    path = "/".join(
        ids[part[1:-1]] if part.startswith("{") else part for part in operation.path.split("/")
    )
    has_body = operation.method in ("POST", "PUT", "PATCH")
    sent = {"json": body} if has_body else {}
    with http.stream(operation.method, path, **sent) as response:
        if response.headers.get("content-type") != EVENT_STREAM:
            response.read()
    return response


def body_of(operation: Operation) -> Any:
    """Return a valid body, without which a request is refused before its owner is looked at."""
    schemas = Schemas()
    declared = operation.parsed_body
    return {} if declared is None else sample(schemas.of(declared), schemas.components)


@pytest.fixture(scope="module")
def credentials(
    deployment: RunningDeployment, make_caller: MakeCaller, admin: Caller
) -> Iterator[dict[str, Credential]]:
    """One credential of each kind."""
    with ExitStack() as stack:

        def open_client(key: str | None = None, **headers: str) -> httpx.Client:
            http = stack.enter_context(client(deployment.url, key))
            http.headers.update(headers)
            return http

        soon = datetime.now(UTC) + timedelta(seconds=1)
        expired = make_caller(expiresAt=soon.isoformat())
        signing = open_client()
        signing.auth = signer = Signer()
        # So that it counts for itself alone, and not for the address of all tests.
        answer(admin.http.post("/v1/keys", json={"ownerDid": signer.did}))
        bearer = f"Bearer {token(unique('did:net:token-'))}"
        found = {
            "no key": Credential(open_client(), None, is_given=False),
            "wrong key": Credential(open_client("cb_wrong"), None),
            "wrong Bearer": Credential(open_client(authorization="Bearer cb_wrong"), None),
            "expired key": Credential(expired.http, None),
            "read-only key": _of(make_caller(scopes=list(READ_ONLY)), READ_ONLY),
            "default key": _of(make_caller(), DEFAULT_SCOPES),
            "free-tier key": Credential(open_client(FREE_TIER_KEY), frozenset({SUGGEST})),
            "access token": Credential(
                open_client(authorization=bearer), frozenset(DEFAULT_SCOPES)
            ),
            "DID signature": Credential(signing, frozenset(DEFAULT_SCOPES)),
            "first key": _of(admin, RIGHTS),
        }
        for right in SINGLE_RIGHTS:
            found[right] = _of(make_caller(scopes=[right]), (right,))
        wait(lambda: expired.http.get("/v1/keys").status_code == 401, "the key's end")
        yield found


def _of(caller: Caller, scopes: Any) -> Credential:
    return Credential(caller.http, frozenset(scopes))


@pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)
def test_each_credential_gets_the_code_of_the_table(
    credentials: dict[str, Credential], operation: Operation
) -> None:
    for name, credential in credentials.items():
        response = ask(credential.http, operation, UNKNOWN, {})
        code = expected(name_of(operation), credential)
        got = response.status_code if response.status_code in REFUSALS else 0
        assert got == code, f"{name}: {response.status_code} {response.text[:300]}"
        if code:
            refusal(response, code, REFUSALS[code])
            assert ("www-authenticate" in response.headers) is (code == 401)


def test_the_table_has_known_operations_and_every_right() -> None:
    assert RIGHTS_OF.keys() <= {name_of(operation) for operation in OPERATIONS}
    opening = frozenset[str]().union(*(rights or () for rights in RIGHTS_OF.values()))
    # `audit:all` opens more of the entries that `audit:read` does.
    unused = {"audit:all", "audit:write", "admin"}
    # A free-tier key's, which no API key names.
    assert opening == (RIGHTS - unused) | {SUGGEST, READ_TRUST}


@pytest.fixture(scope="module")
def ids(make_caller: MakeCaller) -> dict[str, str]:
    """What an owner has."""
    owner, did, capability = make_caller(10), unique("did:net:agent-"), unique("cap.test.") + ".v1"
    with stub_agent(succeed, is_held=False) as stub:
        offers = [{"id": capability, "description": "A test's", "price_cents": 10}]
        card = {"did": did, "endpoint": stub.url, "version": 1, "capabilities": offers}
        answer(owner.http.post("/v1/agents/register", json={"acard": card}))
        workflow_id = owner.run(chain_of(capability, "a"))["id"]
    entries = answer(owner.http.get("/v1/audit", params={"targetId": workflow_id}))["entries"]
    hook = {"url": "http://127.0.0.1:9/", "events": ["workflow.published"]}
    webhook_id = answer(owner.http.post("/v1/webhooks", json=hook))["id"]
    sent = answer(owner.http.post(f"/v1/webhooks/{webhook_id}/test"))
    team = {"name": "team", "policyType": "private"}
    subnet_id = answer(owner.http.post("/v1/federation/subnets", json=team))["id"]
    denying = {"subnetId": subnet_id, "policyType": "require_approval"}
    policy_id = answer(owner.http.post("/v1/federation/policies", json=denying))["id"]
    return {
        **UNKNOWN,
        "subnet_id": subnet_id,
        "policy_id": policy_id,
        "webhook_id": webhook_id,
        "delivery_id": sent["id"],
        "workflow_id": workflow_id,
        "did": did,
        "key_id": owner.key_id,
        "audit_id": str(entries[0]["id"]),
    }


OWNED_NAMES: Final = ("workflow_id", "did", "key_id", "webhook_id", "subnet_id", "policy_id")
IS_ANOTHERS: Final = [
    operation
    for operation in OPERATIONS
    if any(f"{{{name}}}" in operation.path for name in OWNED_NAMES)
    and rights_of(name_of(operation)) not in (frozenset(), *({right} for right in SINGLE_RIGHTS))
]


@pytest.mark.parametrize("operation", IS_ANOTHERS, ids=name_of)
def test_what_another_owner_has_is_not_disclosed(
    credentials: dict[str, Credential], ids: dict[str, str], operation: Operation
) -> None:
    response = ask(credentials["default key"].http, operation, ids, body_of(operation))
    is_change = operation.method != "GET" and operation.path.startswith("/v1/agents/{did}")
    expected = OF_ANOTHER.get(name_of(operation), 403 if is_change else 404)
    assert response.status_code == expected, response.text[:300]


def test_the_free_tier_is_no_owner(credentials: dict[str, Credential]) -> None:
    assert FREE_TIER not in str(answer(credentials["first key"].http.get("/v1/keys"))["keys"])
