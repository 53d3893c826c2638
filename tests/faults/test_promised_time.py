"""Deadlines of payers and the stakes of agents, where the operator requires stakes.

money.md (Promised time, Slashing); issue 10b, row 1.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.conftest import Caller, answer, client, unique
from tests.contract.stub_agent import stub_agent
from tests.platform.deployments import RunningDeployment

Json = dict[str, Any]
STAKED = 10


@pytest.mark.parametrize("is_accepted", [False, True], ids=["silent", "accepted"])
def test_only_a_deadline_after_the_promised_time_costs_stake(
    victim: RunningDeployment, is_accepted: bool
) -> None:
    """Half of the price of a credit is locked, and a failure costs a tenth of that."""
    with (
        client(victim.url, victim.admin_key) as http,
        stub_agent(lambda _: (202, {"ok": True}), is_held=not is_accepted) as stub,
    ):
        payer = Caller("", victim.admin_key, "", http)
        did, capability = unique("did:net:slow-"), unique("cap.slow.")
        offered = {"id": capability, "description": "A test's", "price_cents": 100}
        card = {"did": did, "endpoint": stub.url, "version": 1, "capabilities": [offered]}
        answer(http.post("/v1/agents/register", json={"acard": card}))
        answer(http.post("/v1/ledger/deposit", json={"amount": 2 * STAKED}))
        answer(http.post("/v1/stakes", json={"amount": STAKED, "agentDid": did}))
        node = {"capabilityId": capability, "timeoutMs": 100, "maxRetries": 0}
        targeted = {**node, "targetAgentId": did}
        for settings in ({}, {"maxRuntimeMs": 2_000}):
            manifest = {"nodes": {"a": targeted, "b": node}, "settings": settings}
            record = payer.run(manifest)
            assert record["nodes"]["a"]["error"]["code"] == "AGENT_TIMEOUT"
        assert staked(http, did) == STAKED
        card["capabilities"] = [{**offered, "etaMs": 0}]
        answer(http.post("/v1/agents/register", json={"acard": card}))
        payer.run({"nodes": {"a": targeted}})
        assert staked(http, did) == STAKED - 0.05


def staked(http: Any, did: str) -> float:
    """Return what an agent has staked, credits."""
    amount: float = answer(http.get(f"/v1/stakes/{did}"))["stakedAmount"]
    return amount
