"""Names, row by row: registered by an agent's owner, resolved, renewed, transferred, released.

Spec: Name, /v1/identity/names; decision agent-identity.
"""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import psycopg
import pytest

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    refusal,
    wait,
)
from tests.faults.victims import superuser_url
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]
NAMES = "/v1/identity/names"


def new_name() -> str:
    """Return a name that no other test has."""
    return f"n-{uuid.uuid4().hex[:12]}"


def register(caller: Caller, name: str, did: str, **more: object) -> httpx.Response:
    """Register a name."""
    return caller.http.post(NAMES, json={"name": name, "agentDid": did, **more})


def test_a_name_is_registered_resolved_renewed_and_listed(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    agent, other, name = make_agent(ownerDid=payer.did), make_caller(), new_name()
    refusal(other.http.get(f"{NAMES}/{name}"), 404, "NOT_FOUND")
    made = answer(register(payer, name.upper(), agent.did))
    assert (made["success"], made["id"], made["name"]) == (True, name, name)
    assert (made["agentDid"], made["ownerDid"]) == (agent.did, payer.did)
    year, *rest = made["registeredAt"].split("-", 1)
    assert made["expiresAt"] == f"{int(year) + 1}-{rest[0]}"
    public = {key: made[key] for key in made if key not in ("success", "id")}
    assert answer(other.http.get(f"{NAMES}/{name}")) == public
    assert answer(other.http.get(f"{NAMES}/{name.upper()}")) == public
    renewed = answer(payer.http.post(f"{NAMES}/{name}/renew", json={"durationMonths": 12}))
    assert renewed["expiresAt"] == f"{int(year) + 2}-{rest[0]}"
    assert answer(payer.http.post(f"{NAMES}/{name}/renew"))["expiresAt"][:4] == str(int(year) + 3)
    second = new_name()
    answer(register(payer, second, agent.did, durationMonths=1))
    page = answer(other.http.get(f"/v1/agents/{agent.did}/names", params={"limit": 1}))
    rest_of_it = answer(
        other.http.get(f"/v1/agents/{agent.did}/names", params={"cursor": page["nextCursor"]})
    )
    found = [one["name"] for one in (*page["names"], *rest_of_it["names"])]
    assert found == sorted((name, second))


def test_a_name_of_anothers_agent_and_a_taken_one_are_refused(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    thief, name = make_caller(), new_name()
    agent, his = make_agent(ownerDid=payer.did), make_agent(ownerDid=thief.did)
    refusal(register(thief, name, agent.did), 403, "FORBIDDEN")
    refusal(register(payer, name, "did:net:ghost"), 404, "NOT_FOUND")
    answer(register(payer, name, agent.did))
    refusal(register(thief, name, his.did), 409, "NAME_TAKEN")
    refusal(register(payer, name, agent.did), 409, "NAME_TAKEN")
    path = f"{NAMES}/{name}"
    refusal(thief.http.post(f"{path}/renew"), 403, "FORBIDDEN")
    refusal(thief.http.delete(path), 403, "FORBIDDEN")
    body = {"agentDid": his.did}
    refusal(thief.http.post(f"{path}/transfer", json=body), 403, "FORBIDDEN")
    assert answer(thief.http.get(path))["agentDid"] == agent.did
    answer(payer.http.delete(path))
    refusal(payer.http.get(path), 404, "NOT_FOUND")
    answer(register(thief, name, his.did))


def test_a_name_is_offered_to_another_owner_who_takes_it(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """Until then nothing of it shows at the other's agent."""
    other, name = make_caller(), new_name()
    mine, theirs = make_agent(ownerDid=payer.did), make_agent(ownerDid=other.did)
    answer(register(payer, name, mine.did))
    path, body = f"{NAMES}/{name}/transfer", {"agentDid": theirs.did}
    offered = answer(payer.http.post(path, json=body))
    assert (offered["isTransferred"], offered["ownerDid"]) == (False, payer.did)
    assert answer(payer.http.get(f"/v1/agents/{theirs.did}/names"))["names"] == []
    taken = answer(other.http.post(path, json=body))
    assert (taken["isTransferred"], taken["agentDid"]) == (True, theirs.did)
    assert taken["ownerDid"] == other.did
    refusal(payer.http.post(path, json={"agentDid": mine.did}), 403, "FORBIDDEN")


def test_an_expired_name_is_released_and_free(
    payer: Caller, admin: Caller, make_agent: MakeAgent, deployment: RunningDeployment
) -> None:
    agent, name = make_agent(ownerDid=payer.did), new_name()
    answer(register(payer, name, agent.did))
    with psycopg.connect(superuser_url(deployment), autocommit=True) as connection:
        connection.execute(
            "UPDATE callboard.agent_name SET registered_ms = 1, expires_ms = 2 WHERE name = %s",
            (name,),
        )
    refusal(payer.http.get(f"{NAMES}/{name}"), 404, "NOT_FOUND")
    refusal(payer.http.post(f"{NAMES}/{name}/renew"), 404, "NOT_FOUND")

    def released() -> bool:
        query = {"eventType": "name.released", "targetId": name}
        return len(answer(admin.http.get("/v1/audit", params=query))["entries"]) == 1

    wait(released, "the release of a name")
    answer(register(payer, name, agent.did))


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"name": "ab"}, "name"),
        ({"name": "x" * 33}, "name"),
        ({"name": "-abc"}, "name"),
        ({"name": "abc-"}, "name"),
        ({"name": "a_c"}, "name"),
        ({"name": "ab\u212a"}, "name"),  # a letter that lower-cases to k
        ({"name": 5}, "name"),
        ({"agentDid": "me"}, "agentDid"),
        ({"durationMonths": 0}, "durationMonths"),
        ({"durationMonths": 121}, "durationMonths"),
        ({"months": 1}, "months"),
    ],
)
def test_bad_input_is_refused(payer: Caller, wrong: Json, path: str) -> None:
    body = {"name": new_name(), "agentDid": "did:net:ghost", **wrong}
    refused = refusal(payer.http.post(NAMES, json=body), 400, "INVALID_REQUEST")
    assert refused["errors"][0]["path"] == path


def test_more_than_ten_years_ahead_is_refused(payer: Caller, make_agent: MakeAgent) -> None:
    agent, name = make_agent(ownerDid=payer.did), new_name()
    answer(register(payer, name, agent.did, durationMonths=120))
    refused = payer.http.post(f"{NAMES}/{name}/renew", json={"durationMonths": 1})
    refusal(refused, 400, "INVALID_REQUEST")
