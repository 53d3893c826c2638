"""What cannot be had by making credentials: more rights, a longer life, higher limits.

Spec: Limits.
"""

from __future__ import annotations

import httpx

from tests.contract.conftest import MakeCaller, answer, client, refusal
from tests.contract.signers import Signer
from tests.platform.deployments import RunningDeployment


def test_a_key_is_minted_with_no_more_than_its_parent_has(
    make_caller: MakeCaller, anonymous: httpx.Client
) -> None:
    parent = make_caller(scopes=["keys:write", "keys:read", "agents:read"])
    for scopes in (["admin"], ["ledger:write"], ["audit:all"], ["keys:write", "trust:revoke"]):
        response = parent.http.post("/v1/keys", json={"scopes": scopes})
        refusal(response, 403, "INSUFFICIENT_SCOPE")
    child = answer(parent.http.post("/v1/keys", json={}))
    headers = {"x-api-key": child["key"]}
    for path, body in (
        ("/v1/keys", {"scopes": ["ledger:write"]}),
        ("/v1/keys", {"ownerDid": "did:net:other"}),
        ("/v1/keys", {"rateClass": "unlimited"}),
        (f"/v1/keys/{parent.key_id}/rotate", {}),
    ):
        assert anonymous.post(path, json=body, headers=headers).status_code == 403
    assert len(answer(parent.http.get("/v1/keys"))["keys"]) == 2, "nothing else was made"


def test_keys_of_an_owner_share_its_limits(
    make_caller: MakeCaller, anonymous: httpx.Client
) -> None:
    parent = make_caller(rateClass="standard", rateLimits={"bulk": 3})
    keys = [answer(parent.http.post("/v1/keys", json={}))["key"] for _ in range(4)]
    codes = [
        anonymous.post(
            "/v1/agents/register/bulk", json={"agents": []}, headers={"x-api-key": key}
        ).status_code
        for key in keys
    ]
    assert codes[:3] == [codes[0]] * 3
    assert codes[3] == 429


def test_made_up_dids_share_the_limits_of_their_address(deployment: RunningDeployment) -> None:
    """A new `did:key` for each request: bulk operations are ten a minute for the address, too.

    Each replica has its part of it, rounded up.
    """
    codes = []
    with client(deployment.url) as http:
        for _ in range(40):
            body = {"agents": []}
            response = http.post("/v1/agents/register/bulk", json=body, auth=Signer())
            codes.append(response.status_code)
    assert codes.count(429) >= 20, codes
