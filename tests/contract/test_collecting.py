"""What the owner of an agent sees of its money, and collects; and who tries to.

Spec: decision signed-requests-and-claims.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.contract.conftest import (
    Caller,
    MakeAgent,
    MakeCaller,
    RegisteredAgent,
    answer,
    chain_of,
    client,
    refusal,
    unique,
)
from tests.contract.signers import Signer
from tests.contract.test_agents import REGISTER, card
from tests.contract.test_disputes import complaint
from tests.contract.test_inheritance import request as heir_of
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]


def collect(caller: Caller, did: str, **body: object) -> httpx.Response:
    """Collect from an agent; without a member: all that is free."""
    return caller.http.post(f"/v1/agents/{did}/collect", json=body)


def free(caller: Caller, did: str) -> float:
    """Return the balance of an agent's wallet, as this caller sees it."""
    return float(answer(caller.http.get(f"/v1/balances/{did}"))["balance"])


@pytest.fixture
def owner(make_caller: MakeCaller) -> Caller:
    return make_caller()


@pytest.fixture
def earning(owner: Caller, payer: Caller, make_agent: MakeAgent) -> RegisteredAgent:
    """An agent of an unproven claim, which has earned 1.9 credits with one node."""
    agent = make_agent(owner=owner, price_cents=200)
    assert payer.run(chain_of(agent.capability, "a"))["status"] == "success"
    return agent


def test_an_owner_sees_the_money_of_its_agent(
    owner: Caller, payer: Caller, earning: RegisteredAgent
) -> None:
    did = earning.did
    record = answer(payer.http.get("/v1/workflows?limit=1"))["workflows"][0]
    dispute = answer(payer.http.post("/v1/disputes", json=complaint(record["id"])))
    paths = {
        f"/v1/balances/{did}": "balance",
        f"/v1/ledger/accounts/{did}": "balance",
        f"/v1/ledger/balance?ownerDid={did}": "balance",
        f"/v1/ledger/{did}/history": "events",
        f"/v1/ledger/transactions?ownerDid={did}": "transactions",
        f"/v1/stakes/{did}": "stakedAmount",
        f"/v1/disputes/{dispute['id']}": "id",
    }
    for path, member in paths.items():
        assert answer(owner.http.get(path))[member] is not None, path
    assert free(owner, did) == 1.9
    (event,) = answer(owner.http.get(f"/v1/ledger/{did}/history"))["events"]
    assert (event["eventType"], event["amount"]) == ("node_payment", 1.9)
    listed = answer(owner.http.get("/v1/disputes"))["disputes"]
    assert [one["id"] for one in listed] == [dispute["id"]]
    for path in paths:
        if "/stakes/" not in path and "/disputes/" not in path:
            refusal(payer.http.get(path), 404, "NOT_FOUND")


def test_an_owner_collects_into_its_own_wallet(owner: Caller, earning: RegisteredAgent) -> None:
    did = earning.did
    made = answer(collect(owner, did, amount=0.4))
    assert (made["success"], made["agentDid"], made["ownerDid"]) == (True, did, owner.did)
    assert (made["amount"], made["balance"], made["ownerBalance"]) == (0.4, 1.5, 0.4)
    assert (made["entry"]["kind"], made["entry"]["amount"]) == ("collection", 0.4)
    assert answer(collect(owner, did))["amount"] == 1.5
    assert (free(owner, did), owner.balance()["balance"]) == (0, 1.9)
    assert "0 are free in" in refusal(collect(owner, did), 409, "CONFLICT")["detail"]
    query = f"/v1/audit?eventType=ledger.collected&actorDid={owner.did}"
    entries = answer(owner.http.get(query))["entries"]
    assert [entry["targetId"] for entry in entries] == [did, did]
    assert "payload" in entries[0], "it is shown whole to the owner"


def test_an_amount_is_positive_and_at_most_what_is_free(
    owner: Caller, earning: RegisteredAgent
) -> None:
    refusal(collect(owner, earning.did, amount=0), 400, "INVALID_REQUEST")
    refusal(collect(owner, earning.did, amount=1.900001), 409, "CONFLICT")
    assert free(owner, earning.did) == 1.9


def test_only_the_owner_and_administrators_collect(
    owner: Caller, earning: RegisteredAgent, make_caller: MakeCaller, admin: Caller
) -> None:
    stranger, did = make_caller(), earning.did
    refusal(collect(stranger, did), 403, "FORBIDDEN")
    refusal(collect(stranger, unique("did:net:ghost-")), 404, "NOT_FOUND")
    refusal(collect(owner, owner.did), 404, "NOT_FOUND")
    narrow = make_caller(ownerDid=owner.did, scopes=["ledger:read"])
    refusal(collect(narrow, did), 403, "INSUFFICIENT_SCOPE")
    assert answer(collect(admin, did, amount=1))["ownerDid"] == owner.did
    assert owner.balance()["balance"] == 1, "also an administrator pays the owner alone"


def test_collects_at_once_and_repeats_move_what_there_is_once(
    owner: Caller, earning: RegisteredAgent
) -> None:
    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda _: collect(owner, earning.did), range(4)))
    assert sorted(reply.status_code for reply in replies) == [200, 409, 409, 409]
    assert owner.balance()["balance"] == 1.9


def test_what_is_staked_or_disputed_is_not_collected(
    owner: Caller, payer: Caller, earning: RegisteredAgent, admin: Caller
) -> None:
    did = earning.did
    second = payer.run(chain_of(earning.capability, "ab"))
    answer(admin.http.post("/v1/ledger/deposit", json={"amount": 1, "ownerDid": owner.did}))
    answer(owner.http.post("/v1/stakes", json={"agentDid": did, "amount": 1}))
    dispute = answer(payer.http.post("/v1/disputes", json=complaint(second["id"], nodeId="a")))
    again = complaint(second["id"])
    answer(payer.http.post("/v1/disputes", json=again))
    in_wallet = free(owner, did)
    # Both nodes of the second workflow are disputed, one of them twice.
    refusal(collect(owner, did, amount=round(in_wallet - 3.799, 6)), 409, "CONFLICT")
    assert answer(collect(owner, did))["amount"] == pytest.approx(in_wallet - 3.8)
    resolve = f"/v1/disputes/{dispute['id']}/resolve"
    decision = {"status": "resolved_complainant", "resolution": "x", "creditsRefunded": 2}
    assert answer(admin.http.post(resolve, json=decision))["creditsShort"] == 0
    refusal(collect(owner, did), 409, "CONFLICT")
    (other,) = answer(owner.http.get("/v1/disputes?status=open"))["disputes"]
    decision = {"status": "dismissed", "resolution": "it is good"}
    answer(admin.http.post(f"/v1/disputes/{other['id']}/resolve", json=decision))
    assert answer(collect(owner, did))["amount"] == pytest.approx(1.9)
    assert answer(owner.http.get(f"/v1/stakes/{did}"))["stakedAmount"] == 1


def test_an_agent_that_has_left_or_is_revoked_is_collected_from(
    owner: Caller, earning: RegisteredAgent
) -> None:
    did = earning.did
    answer(owner.http.post("/v1/trust/revoke", json={"did": did, "reason": "x", "evidence": {}}))
    answer(collect(owner, did, amount=1))
    answer(owner.http.delete(f"/v1/agents/{did}"))
    assert answer(collect(owner, did))["amount"] == 0.9


def test_an_agent_that_owns_itself_has_nothing_to_collect(make_caller: MakeCaller) -> None:
    one = make_caller(5)
    answer(one.http.post(REGISTER, json={"acard": card(one.did)}))
    detail = refusal(collect(one, one.did), 409, "CONFLICT")["detail"]
    assert "its own owner" in detail


def test_a_stranger_takes_no_wallet_by_registering_its_did(
    make_caller: MakeCaller, admin: Caller
) -> None:
    """Of somebody with money; of somebody who comes after the claim; of somebody who proves it."""
    thief, victim = make_caller(), make_caller(7)
    refusal(thief.http.post(REGISTER, json={"acard": card(victim.did)}), 403, "FORBIDDEN")
    refusal(collect(thief, victim.did), 404, "NOT_FOUND")
    late = unique("did:net:late-")
    answer(thief.http.post(REGISTER, json={"acard": card(late)}))
    answer(thief.http.post("/v1/identity/inheritance", json=heir_of(late, thief.did + "-heir")))
    person = make_caller(7, ownerDid=late)
    answer(admin.http.post("/v1/ledger/deposit", json={"amount": 7, "ownerDid": late}))
    detail = refusal(collect(thief, late), 403, "FORBIDDEN")["detail"]
    assert "proof" in detail
    for path in (f"/v1/balances/{late}", f"/v1/ledger/{late}/history", f"/v1/stakes/{late}"):
        refusal(thief.http.get(path), 404, "NOT_FOUND")
    answer(person.http.post(REGISTER, json={"acard": card(late)}))
    refusal(collect(thief, late), 403, "FORBIDDEN")
    assert float(answer(person.http.get("/v1/ledger/balance"))["balance"]) == 7


def test_a_proven_claim_collects_although_the_did_has_keys(
    make_caller: MakeCaller, admin: Caller
) -> None:
    owner, did = make_caller(), unique("did:net:agent-")
    make_caller(ownerDid=did)
    answer(admin.http.post("/v1/ledger/deposit", json={"amount": 3, "ownerDid": did}))
    answer(admin.http.post(REGISTER, json={"acard": card(did), "ownerDid": owner.did}))
    assert answer(collect(owner, did))["amount"] == 3


def test_a_claim_made_before_the_first_deposit_takes_none_of_it(
    make_caller: MakeCaller, make_agent: MakeAgent, payer: Caller, admin: Caller
) -> None:
    """A stranger registered a DID, an operator deposited for its person, who had no key yet."""
    thief = make_caller()
    squatted = make_agent(owner=thief, price_cents=200)
    answer(admin.http.post("/v1/ledger/deposit", json={"amount": 7, "ownerDid": squatted.did}))
    assert payer.run(chain_of(squatted.capability, "a"))["status"] == "success"
    detail = refusal(collect(thief, squatted.did, amount=2), 409, "CONFLICT")["detail"]
    assert "7 were deposited" in detail
    assert answer(collect(thief, squatted.did))["amount"] == 1.9, "its own work alone"


def test_a_did_that_publishes_by_itself_is_nobody_elses_wallet(
    make_caller: MakeCaller, earning: RegisteredAgent, admin: Caller, deployment: RunningDeployment
) -> None:
    """A payer who signs its requests has neither key nor agents: a stranger took what it had."""
    thief, signer = make_caller(), Signer()
    answer(thief.http.post(REGISTER, json={"acard": card(signer.did)}))
    answer(admin.http.post("/v1/ledger/deposit", json={"amount": 9, "ownerDid": signer.did}))
    with client(deployment.url) as http:
        http.auth = signer
        answer(http.post("/v1/workflows/publish", json=chain_of(earning.capability, "a")))
        assert answer(http.get("/v1/ledger/balance"))["pending"] >= 0
    refusal(collect(thief, signer.did), 403, "FORBIDDEN")
    refusal(thief.http.get(f"/v1/balances/{signer.did}"), 404, "NOT_FOUND")
    refusal(thief.http.get(f"/v1/ledger/{signer.did}/history"), 404, "NOT_FOUND")
