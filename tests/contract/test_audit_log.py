"""Proofs of the audit log over HTTP: checkpoints, inclusion, consistency, checks, export, bundles.

Reference: money.md (Checkpoints, Verifying the chain).
"""

from __future__ import annotations

import base64
import json
import socket
import string
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from nacl.signing import SigningKey
from pymerkle import InmemoryTree

from callboard.client import Client
from callboard.proofs import audit_lines, export_log, prove_node
from callboard.verify import NotProven, verify_bundle, verify_log
from core.jcs import jcs
from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    chain_of,
    refusal,
    wait,
)
from tests.contract.test_signed_results import signing_agent
from tests.core.trust.test_merkle import is_consistent
from tests.faults.victims import superuser_url
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]
CHECKPOINT, EXPORT = "/v1/audit/checkpoint", "/v1/audit/export"
BEYOND = 10**9


def checkpoint_of(caller: Caller, entry_id: int | None = None) -> str:
    """Return the newest checkpoint, or the first one that covers an entry, once there is one."""
    params = {} if entry_id is None else {"size": entry_id}
    wait(
        lambda: caller.http.get(CHECKPOINT, params=params).status_code == 200,
        f"a checkpoint that covers entry {entry_id}",
    )
    response = caller.http.get(CHECKPOINT, params=params)
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    return response.text


def size_of(note: str) -> int:
    return int(note.split("\n")[1])


def lines_of(caller: Caller, first: int = 1) -> list[bytes]:
    """Return the lines of an export from an entry on."""
    response = caller.http.get(EXPORT, params={"from": first})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/jsonl"
    assert response.content.endswith(b"\n")
    return [line + b"\n" for line in response.content.split(b"\n")[:-1]]


def first_key(caller: Caller) -> str:
    keys = answer(caller.http.get("/.well-known/callboard.json"))["signingKeys"]
    return str(keys[-1]["publicKey"])


def deposited(admin: Caller, owner: str) -> int:
    """Deposit a credit; return the id of its entry."""
    answer(admin.http.post("/v1/ledger/deposit", json={"ownerDid": owner, "amount": 1}))
    query = {"eventType": "ledger.deposited", "targetId": owner, "limit": 1}
    return int(answer(admin.http.get("/v1/audit", params=query))["entries"][0]["id"])


def test_an_export_is_proven_by_the_checkpoints_and_the_first_key(admin: Caller) -> None:
    number = deposited(admin, "did:net:exported")
    note = checkpoint_of(admin, number)
    lines = lines_of(admin)
    log = verify_log(lines, first_key(admin), [note, checkpoint_of(admin, 1)])
    assert log.signed == size_of(note) >= number
    for line in lines[:50]:
        assert jcs(json.loads(line)) + b"\n" == line
    (entry,) = [json.loads(line) for line in lines if f'"id":{number},'.encode() in line][:1]
    assert entry == answer(admin.http.get(f"/v1/audit/{number}"))


def test_inclusion_and_consistency_proofs_hold_by_pymerkles_roots(admin: Caller) -> None:
    size = size_of(checkpoint_of(admin, deposited(admin, "did:net:proven")))
    tree = InmemoryTree()
    for line in lines_of(admin)[:size]:
        entry = json.loads(line)
        tree.append_entry(jcs({name: v for name, v in entry.items() if name != "hash"}))
    for number in {1, size // 2, size}:
        proof = answer(admin.http.get("/v1/audit/proof", params={"id": number, "size": size}))
        path = [f"sha256:{one.hex()}" for one in tree.prove_inclusion(number, size).path]
        assert [proof["leafHash"], *proof["hashes"]] == path
        assert (proof["id"], proof["size"]) == (number, size)
        assert proof["root"] == f"sha256:{tree.get_root(size).hex()}"
        between = answer(
            admin.http.get("/v1/audit/consistency", params={"from": number, "to": size})
        )
        hashes = [bytes.fromhex(one.removeprefix("sha256:")) for one in between["hashes"]]
        assert is_consistent(number, size, hashes, tree.get_root(number), tree.get_root(size))
        assert between["fromRoot"] == f"sha256:{tree.get_root(number).hex()}"
        assert (between["from"], between["to"], between["toRoot"]) == (number, size, proof["root"])
    newest = answer(admin.http.get("/v1/audit/proof", params={"id": 1}))
    assert newest["size"] >= size


@pytest.mark.parametrize(
    ("path", "query"),
    [
        (CHECKPOINT, {"size": 0}),
        (CHECKPOINT, {"size": "one"}),
        (CHECKPOINT, {"size": 2**63}),
        ("/v1/audit/proof", {}),
        ("/v1/audit/proof", {"id": 0}),
        ("/v1/audit/proof", {"id": "-1"}),
        ("/v1/audit/proof", {"id": "1.5"}),
        ("/v1/audit/proof", {"id": 2, "size": 1}),
        ("/v1/audit/proof", {"id": 10**30}),
        ("/v1/audit/consistency", {}),
        ("/v1/audit/consistency", {"from": 0}),
        ("/v1/audit/consistency", {"from": 2, "to": 1}),
        ("/v1/audit/consistency", {"from": "\u0661"}),
        ("/v1/audit/verify", {"from": 0}),
        ("/v1/audit/verify", {"limit": 10_001}),
        ("/v1/audit/verify", {"limit": 0}),
        (EXPORT, {"from": 0}),
        (EXPORT, {"from": "\0"}),
    ],
)
def test_bad_parameters_are_refused(admin: Caller, path: str, query: Json) -> None:
    refusal(admin.http.get(path, params=query), 400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("path", "query"),
    [
        (CHECKPOINT, {"size": BEYOND}),
        (CHECKPOINT, {"size": 2**63 - 1}),
        ("/v1/audit/proof", {"id": BEYOND}),
        ("/v1/audit/proof", {"id": 1, "size": BEYOND}),
        ("/v1/audit/consistency", {"from": 1, "to": BEYOND}),
    ],
)
def test_what_is_not_signed_yet_is_not_found(admin: Caller, path: str, query: Json) -> None:
    checkpoint_of(admin)
    refusal(admin.http.get(path, params=query), 404, "NOT_FOUND")


def test_the_service_checks_its_entries_in_pages(admin: Caller, payer: Caller) -> None:
    last = max(deposited(admin, payer.did) for _ in range(15))
    checkpoint_of(admin, last)
    page = answer(payer.http.get("/v1/audit/verify", params={"limit": 7}))
    assert (page["valid"], page["firstBad"]) == (True, None)
    assert (page["from"], page["to"], page["entries"], page["nextFrom"]) == (1, 7, 7, 8)
    page = answer(payer.http.get("/v1/audit/verify", params={"from": 8, "limit": 5}))
    assert (page["from"], page["to"], page["entries"], page["nextFrom"]) == (8, 12, 5, 13)
    assert size_of(page["checkpoint"]) >= last
    page = answer(payer.http.get("/v1/audit/verify", params={"from": BEYOND}))
    assert (page["valid"], page["to"], page["entries"], page["nextFrom"]) == (True, None, 0, None)


def test_others_see_proofs_but_only_links_of_entries(
    admin: Caller, payer: Caller, make_caller: MakeCaller
) -> None:
    own = deposited(admin, payer.did)
    checkpoint_of(admin, own)
    stranger = make_caller()
    (line, *_) = lines_of(stranger, own)
    whole = answer(payer.http.get(f"/v1/audit/{own}"))
    assert json.loads(line) == {name: whole[name] for name in ("id", "eventType", "hash")}
    assert jcs(json.loads(line)) + b"\n" == line
    (line, *_) = lines_of(payer, own)
    assert json.loads(line) == whole
    proof = answer(stranger.http.get("/v1/audit/proof", params={"id": own}))
    same = {"id": own, "size": proof["size"]}
    assert proof == answer(admin.http.get("/v1/audit/proof", params=same))
    # The entries that name the log's keys are everybody's: signatures can be checked.
    first = json.loads(lines_of(stranger)[0])
    assert first["payload"]["publicKey"] == first_key(stranger)
    with pytest.raises(NotProven, match="has the members"):
        verify_log(lines_of(stranger))
    blind = make_caller(scopes=["ledger:read"])
    for path in (CHECKPOINT, "/v1/audit/proof?id=1", EXPORT, "/v1/audit/verify"):
        refusal(blind.http.get(path), 403, "INSUFFICIENT_SCOPE")


def test_checkpoints_are_at_most_one_a_second(deployment: RunningDeployment, admin: Caller) -> None:
    last = deposited(admin, "did:net:rate")
    for _ in range(3):
        last = deposited(admin, "did:net:rate")
        checkpoint_of(admin, last)
    with psycopg.connect(superuser_url(deployment)) as connection:
        rows = connection.execute(
            "SELECT created_ms FROM callboard.checkpoint ORDER BY size"
        ).fetchall()
    gaps = [after - before for (before,), (after,) in pairwise(rows)]
    assert min(gaps) >= 900, "a round waits a second after the one before"


def test_an_export_is_resumed_after_its_last_complete_line(
    deployment: RunningDeployment, admin: Caller, tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    checkpoint_of(admin, deposited(admin, "did:net:resumed"))
    with Client(deployment.url, deployment.admin_key) as client:
        added, size = export_log(client, file)
        assert added == size
        whole = file.read_bytes()
        checkpoint_of(admin, deposited(admin, "did:net:resumed"))
        file.write_bytes(whole[: len(whole) // 2])
        added, later = export_log(client, file)
        assert 0 < added < later
        assert later > size
        assert b"".join(whole.split(b"\n")[:-2]) == b"".join(file.read_bytes().split(b"\n")[:size])
        with file.open("rb") as lines:
            log = verify_log(lines, first_key(admin), [checkpoint_of(admin, 1)])
        assert (log.entries, log.signed) == (later, later)
        added, newest = export_log(client, file)
        assert newest == later + added
        with file.open("rb") as lines:
            assert verify_log(lines, first_key(admin)).signed == newest
        assert next(audit_lines(client, later)) == lines_of(admin, later)[0]


def test_the_place_of_an_export_is_given_back_when_its_reader_leaves(
    deployment: RunningDeployment, admin: Caller
) -> None:
    where = urlsplit(deployment.url)
    request = f"GET {EXPORT} HTTP/1.1\r\nhost: {where.netloc}\r\nx-api-key: {admin.key}\r\n\r\n"

    def answered() -> bool:
        with socket.create_connection((str(where.hostname), int(where.port or 80))) as reader:
            reader.sendall(request.encode())
            return reader.recv(64).startswith(b"HTTP/1.1 200")

    for _ in range(12):
        wait(answered, "a place for an export")
    wait(lambda: admin.http.get(EXPORT).status_code == 200, "a place for an export")


def test_an_export_by_a_single_right_is_noted(admin: Caller, make_caller: MakeCaller) -> None:
    auditor = make_caller(scopes=["audit:read", "audit:all"])
    own = lines_of(auditor)
    assert lines_of(admin)[: len(own)] == own
    query = {"actorDid": auditor.did, "eventType": "right.used"}
    wait(
        lambda: bool(answer(admin.http.get("/v1/audit", params=query))["entries"]),
        "the note of the export",
    )


def test_head_of_an_export_has_no_body(admin: Caller) -> None:
    response = admin.http.head(EXPORT)
    assert (response.status_code, response.content) == (200, b"")


def test_a_bundle_proves_a_node_offline(
    deployment: RunningDeployment, admin: Caller, payer: Caller, make_agent: MakeAgent
) -> None:
    agent = signing_agent(make_agent, admin, SigningKey.generate())
    names = string.ascii_letters  # more than the 50 of a page
    record = payer.run(chain_of(agent.capability, names))
    with Client(deployment.url, deployment.admin_key) as client:
        bundle = prove_node(client, record["id"], names[-1])
        first = prove_node(client, record["id"], names[0])
    for made in (first, bundle):
        proof = verify_bundle(json.dumps(made).encode() + b"\n", first_key(admin))
        assert all(proof.parts.values()), proof
        assert proof.success["nodeId"] == made["nodeId"]
    assert (
        proof.key_id
        == answer(admin.http.get("/.well-known/callboard.json"))["signingKeys"][0]["keyId"]
    )
    said = [json.loads(part["line"])["eventType"] for part in bundle["entries"]]
    assert {"ledger.created", "agent.registered", "workflow.published", "node.succeeded"} <= {*said}
    changed = bundle["entries"][-1]["line"].replace(record["id"], "0" * 36)
    bundle["entries"][-1]["line"] = changed
    with pytest.raises(NotProven):
        verify_bundle(json.dumps(bundle).encode() + b"\n", first_key(admin))
    with Client(deployment.url, payer.key) as client:
        own = prove_node(client, record["id"], names[0])
    parts = verify_bundle(json.dumps(own).encode() + b"\n", first_key(admin)).parts
    expected = {"payment": True, "receipt": True, "signature": False, "card": False}
    assert parts == expected, "the agent's registration and key are its owner's business"


def test_a_registration_names_the_agents_key_and_card(admin: Caller, make_agent: MakeAgent) -> None:
    agent = make_agent()
    query = {"eventType": "agent.registered", "targetId": agent.did}
    (entry,) = answer(admin.http.get("/v1/audit", params=query))["entries"]
    (event,) = entry["payload"]["events"]
    shown = answer(admin.http.get(f"/v1/agents/{agent.did}"))["acard"]
    assert event["payload"]["cardSha256"] == sha256(jcs(shown)).hexdigest()
    key = base64.b64encode(bytes(range(32))).decode()
    card = {**agent.card, "publicKey": key}
    answer(admin.http.post("/v1/agents/register", json={"acard": card}))
    newest, _ = answer(admin.http.get("/v1/audit", params=query))["entries"]
    assert newest["payload"]["events"][0]["payload"]["publicKey"] == key


def test_health_names_what_contradicts_a_checkpoint(
    deployment: RunningDeployment, admin: Caller, anonymous: httpx.Client
) -> None:
    def state() -> str:
        return str(anonymous.get("/health").json()["components"]["audit"])

    note = checkpoint_of(admin, deposited(admin, "did:net:health"))
    assert state() == "healthy"
    update = "UPDATE callboard.checkpoint SET root = %s WHERE size = %s"
    with psycopg.connect(superuser_url(deployment), autocommit=True) as connection:
        query = "SELECT root, size FROM callboard.checkpoint ORDER BY size DESC LIMIT 1"
        root, size = connection.execute(query).fetchone() or (b"", 0)
        connection.execute(update, (b"x" * 32, size))
        try:
            deposited(admin, "did:net:health")
            expected = f"unhealthy: the tree is not the one of the checkpoint of size {size}"
            wait(lambda: state() == expected, "the contradiction in health")
        finally:
            connection.execute(update, (root, size))
    wait(lambda: state() == "healthy", "a healthy log")
    assert size_of(checkpoint_of(admin, size + 1)) > size >= size_of(note)
