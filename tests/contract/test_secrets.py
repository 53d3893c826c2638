"""Secrets stand in no log, reply or audit entry, and what is stored of them is sealed."""

from __future__ import annotations

import psycopg

from tests.contract.conftest import Caller, MakeCaller, answer, refusal, unique
from tests.faults.victims import superuser_url
from tests.platform.deployments import RunningDeployment

REGISTER = "/v1/agents/register"


def test_planted_secrets_are_found_nowhere(
    deployment: RunningDeployment, make_caller: MakeCaller, admin: Caller
) -> None:
    """An agent's signing secret, an API key, a heartbeat token and the deployment's key."""
    owner = make_caller()
    planted = unique("planted-hush-")
    card = {
        "did": unique("did:net:secret-"),
        "endpoint": "http://127.0.0.1:9",
        "version": 1,
        "capabilities": [{"id": unique("cap.secret.") + ".v1"}],
    }
    body = {"acard": card, "signingSecret": planted}
    headers = {"Idempotency-Key": unique("k-")}
    made = answer(owner.http.post(REGISTER, json=body, headers=headers))
    token = made["heartbeatToken"]
    secrets = [planted, owner.key, token, (deployment.home / "deployment.key").read_text()]
    replies = [
        owner.http.post(REGISTER, json={**body, "acard": {**card, "endpoint": "http://10.0.0.1"}}),
        owner.http.post(REGISTER, json={**body, "acard": {**card, "version": "x" * 600}}),
        owner.http.post(REGISTER, json={**body, "acard": {**card, "apiKey": planted}}),
        owner.http.post(REGISTER, content=f'{{"signingSecret": "{planted}", '.encode()),
        admin.http.get(f"/v1/audit?targetId={card['did']}"),
        admin.http.get(f"/v1/agents/{card['did']}"),
        owner.http.get("/v1/keys"),
    ]
    wrong = owner.http.get("/v1/ledger/balance", headers={"x-api-key": owner.key[:-1] + "_"})
    refusal(wrong, 401, "UNAUTHORIZED")
    for secret in secrets:
        for reply in (*replies, wrong):
            assert secret not in reply.text, f"{reply.request.method} {reply.request.url}"
        for log in (deployment.home / "logs").iterdir():
            assert secret.encode() not in log.read_bytes(), log
    with psycopg.connect(superuser_url(deployment)) as connection:
        dump = connection.execute(
            "SELECT encode(signing_secret, 'escape') FROM callboard.agent WHERE did = %(did)s"
            " UNION ALL SELECT body FROM callboard.audit WHERE body LIKE '%%' || %(did)s || '%%'"
            " UNION ALL SELECT encode(reply, 'escape') FROM callboard.http_reply"
            " WHERE reply IS NOT NULL",
            {"did": card["did"]},
        ).fetchall()
    assert len(dump) >= 3
    for secret in secrets:
        assert not [row for row in dump if secret in row[0]]
