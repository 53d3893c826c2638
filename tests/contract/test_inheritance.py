"""Inheritance, row by row: set and cancelled by the owner, told to those it is between, run once.

Spec: Inheritance, /v1/identity/inheritance; decision agent-identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    answer,
    refusal,
    unique,
    wait,
)
from tests.faults.victims import superuser_url
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]
PATH = "/v1/identity/inheritance"
DAY_MS = 86_400_000


def request(did: str, heir: str, **changes: object) -> Json:
    """Return the body that names an heir."""
    return {"agentDid": did, "inheritsToDid": heir, "deadManSwitchDays": 10, **changes}


class Past:
    """Moves what was set or heard into the past, as if the service had run since."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def silence(self, did: str, days: float) -> None:
        """Let an agent have been silent for so many days."""
        ms = int(days * DAY_MS)
        self._connection.execute(
            "UPDATE callboard.inheritance SET set_ms = set_ms - %s WHERE agent_did = %s", (ms, did)
        )
        self._connection.execute(
            "UPDATE callboard.agent_live SET heartbeat_ms = heartbeat_ms - %s WHERE did = %s",
            (ms, did),
        )


@pytest.fixture(scope="module")
def past(deployment: RunningDeployment) -> Iterator[Past]:
    """A way to let time pass."""
    with psycopg.connect(superuser_url(deployment), autocommit=True) as connection:
        yield Past(connection)


def test_an_heir_is_named_read_and_struck_out(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    """Told to the owner and the heir; to another there is none."""
    heir, stranger, agent = make_caller(), make_caller(), make_agent(ownerDid=payer.did)
    path = f"{PATH}/{agent.did}"
    refusal(payer.http.get(path), 404, "NOT_FOUND")
    conditions = {"requiresInactivity": True}
    body = request(agent.did, heir.did, conditions=conditions)
    made = answer(payer.http.post(PATH, json=body))
    assert (made["success"], made["id"], made["agentDid"]) == (True, agent.did, agent.did)
    assert (made["inheritsToDid"], made["ownerDid"]) == (heir.did, payer.did)
    assert (made["deadManSwitchDays"], made["conditions"]) == (10, conditions)
    assert (made["status"], made["lastHeartbeatAt"], made["triggeredAt"]) == (
        "inactive",
        None,
        None,
    )
    assert made["triggersAt"] > made["setAt"]
    for party in (payer, heir):
        read = answer(party.http.get(path))
        assert {**read, "triggersAt": 0} == {
            key: made[key] if key != "triggersAt" else 0 for key in read
        }
    refusal(stranger.http.get(path), 404, "NOT_FOUND")
    again = answer(payer.http.post(PATH, json=request(agent.did, heir.did)))
    assert (again["revision"], again["conditions"]) == (2, {"requiresInactivity": False})
    refusal(heir.http.delete(path), 403, "FORBIDDEN")
    gone = answer(payer.http.delete(path))
    assert (gone["success"], gone["agentDid"]) == (True, agent.did)
    refusal(payer.http.get(path), 404, "NOT_FOUND")
    refusal(payer.http.delete(path), 404, "NOT_FOUND")


def test_an_heir_of_anothers_agent_is_refused(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller
) -> None:
    thief, agent = make_caller(), make_agent(ownerDid=payer.did)
    refusal(thief.http.post(PATH, json=request(agent.did, thief.did)), 403, "FORBIDDEN")
    ghost = request(unique("did:net:ghost-"), thief.did)
    refusal(payer.http.post(PATH, json=ghost), 404, "NOT_FOUND")
    for heir in (agent.did, payer.did):
        refused = payer.http.post(PATH, json=request(agent.did, heir))
        refusal(refused, 400, "INVALID_REQUEST")
    refusal(payer.http.get(f"{PATH}/{agent.did}"), 404, "NOT_FOUND")


def test_silence_warns_and_a_heartbeat_starts_the_time_again(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller, past: Past
) -> None:
    """One of another agent, or without the right to send it, does not."""
    heir, agent = make_caller(), make_agent(ownerDid=payer.did)
    other = make_agent(ownerDid=heir.did)
    answer(payer.http.post(PATH, json=request(agent.did, heir.did)))
    past.silence(agent.did, 8.5)
    path, beat = f"{PATH}/{agent.did}", f"/v1/agents/{agent.did}/heartbeat"
    refusal(heir.http.post(beat, json={"status": "healthy"}), 403, "FORBIDDEN")
    answer(heir.http.post(f"/v1/agents/{other.did}/heartbeat", json={"status": "healthy"}))
    assert answer(payer.http.get(path))["status"] == "warning"
    answer(payer.http.post(beat, json={"status": "healthy"}))
    heard = answer(payer.http.get(path))
    assert (heard["status"], heard["lastHeartbeatAt"] is None) == ("inactive", False)


def test_the_heir_has_all_that_was_the_agents(
    payer: Caller, make_agent: MakeAgent, make_caller: MakeCaller, admin: Caller, past: Past
) -> None:
    """Ownership, name, stake, wallet; once, on the chain; and the old owner has no say any more."""
    heir, agent = make_caller(), make_agent(ownerDid=payer.did)
    name = unique("n-")
    answer(payer.http.post("/v1/identity/names", json={"name": name, "agentDid": agent.did}))
    answer(payer.http.post("/v1/stakes", json={"amount": 3, "agentDid": agent.did}))
    deposit = {"amount": 5, "ownerDid": agent.did}
    answer(admin.http.post("/v1/ledger/deposit", json=deposit))
    answer(payer.http.post(PATH, json=request(agent.did, heir.did)))
    past.silence(agent.did, 10.01)
    path = f"{PATH}/{agent.did}"
    wait(lambda: answer(heir.http.get(path))["status"] == "triggered", "the heir to have it")
    assert answer(heir.http.get(path))["triggeredAt"] is not None
    assert answer(heir.http.get(f"/v1/agents/{agent.did}"))["ownerDid"] == heir.did
    assert answer(heir.http.get(f"/v1/identity/names/{name}"))["ownerDid"] == heir.did
    assert heir.balance()["balance"] == 5
    unstake = {"amount": 3, "agentDid": agent.did}
    refusal(payer.http.post("/v1/stakes/unstake", json=unstake), 403, "FORBIDDEN")
    assert answer(heir.http.post("/v1/stakes/unstake", json=unstake))["walletDid"] == heir.did
    refusal(payer.http.patch(f"/v1/agents/{agent.did}", json={"version": 2}), 403, "FORBIDDEN")
    refusal(payer.http.delete(path), 403, "FORBIDDEN")
    refusal(heir.http.delete(path), 409, "NOT_CANCELLABLE")
    query = {"eventType": "agent.inherited", "targetId": agent.did}
    assert len(answer(admin.http.get("/v1/audit", params=query))["entries"]) == 1


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"deadManSwitchDays": 0}, "deadManSwitchDays"),
        ({"deadManSwitchDays": 3_651}, "deadManSwitchDays"),
        ({"deadManSwitchDays": 1.5}, "deadManSwitchDays"),
        ({"inheritsToDid": "me"}, "inheritsToDid"),
        ({"agentDid": None}, "agentDid"),
        ({"conditions": {"requiresInactivity": 1}}, "conditions.requiresInactivity"),
        ({"conditions": {"requiresActivity": True}}, "conditions.requiresActivity"),
        ({"days": 5}, "days"),
    ],
)
def test_bad_input_is_refused(payer: Caller, wrong: Json, path: str) -> None:
    body = {**request("did:net:ghost", "did:net:heir"), **wrong}
    refused = refusal(payer.http.post(PATH, json=body), 400, "INVALID_REQUEST")
    assert refused["errors"][0]["path"] == path


def test_an_unproven_claim_names_an_heir(
    make_agent: MakeAgent, make_caller: MakeCaller, admin: Caller
) -> None:
    """Its switch does not run: tests/ledger/test_inheritances.py."""
    thief, heir = make_caller(), make_caller()
    did = make_agent(owner=thief).did
    answer(admin.http.post("/v1/keys", json={"ownerDid": did}))
    answer(thief.http.post(PATH, json=request(did, heir.did)))
