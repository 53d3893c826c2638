"""The work that a deployment is stopped in the middle of, and what the service makes of it later.

`begin` is run once, for the dump, by clients over HTTP; the test ends the work with the code of
then. Each workflow is named by where it stands in the dump.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Final

import httpx

from core.market.settlement import split_payment
from tests.contract.conftest import answer, client, wait
from tests.contract.stub_agent import Answer, Json, StubAgent
from tests.platform.deployments import RunningDeployment

# Of the deployment that was dumped: secrets in its rows are sealed with it.
DEPLOYMENT_KEY: Final = "5a" * 32
INLINE_BYTES: Final = 1_024
SETTINGS: Final = f"stake_bps = 1_000\nresult_inline_bytes_max = {INLINE_BYTES}\n"
# Where the dump's agents do not listen: a test puts its own address into the rows.
NOWHERE: Final = "http://127.0.0.1:9"

CREDIT: Final = 1_000_000
DEPOSIT_MICRO: Final = 100 * CREDIT
STAKE_CREDITS: Final = 5
PAYER, OWNER, JUDGE_OWNER = "did:dump:payer", "did:dump:owner", "did:dump:judge-owner"
WORKER, SIGNED, METERED = "did:dump:worker", "did:dump:signed", "did:dump:metered"
CHEAP, DEAR, JUDGE, REVOKED = (
    "did:dump:cheap-bidder",
    "did:dump:dear-bidder",
    "did:dump:judge",
    "did:dump:revoked",
)
STAKED: Final = (WORKER, SIGNED, METERED, CHEAP, DEAR)
WORK, SIGN, METER, AUCTION, VERIFY = (
    "cap.dump.work.v1",
    "cap.dump.sign.v1",
    "cap.dump.meter.v1",
    "cap.dump.auction.v1",
    "cap.verify.generic.v1",
)
SIGNING_SECRET: Final = "a secret of the agent and the service"
LARGE: Final = "x" * (2 * INLINE_BYTES)
WORK_MICRO, SIGN_MICRO, JUDGE_MICRO = 200_000, 100_000, 50_000
TOKENS: Final = {"input_tokens": 700, "output_tokens": 301}
RATES: Final = {"model": "per-token", "inputRate": "0.00001", "outputRate": "0.00002"}
METER_MICRO: Final = 700 * 10 + 301 * 20
LIVE_BID_CREDITS, STANDING_BID_CREDITS = 0.2, 0.3
# The lowest bid, which its bidder is paid: the other one is of the same owner.
AUCTION_MICRO: Final = 200_000
EXPIRES_MS: Final = 60_000
WINDOW_MS: Final = 60_000

# What each workflow costs in the end. `expired` had paid for one node of two; every other succeeds.
SPENT_MICRO: Final = {
    "finished": 2 * WORK_MICRO,
    "dispatched": 2 * WORK_MICRO,
    "half_paid": 2 * WORK_MICRO,
    "accepted": 2 * WORK_MICRO,
    "backing_off": 2 * WORK_MICRO,
    "large": 2 * WORK_MICRO,
    "verified": WORK_MICRO + JUDGE_MICRO,
    "metered": METER_MICRO,
    "signed": SIGN_MICRO,
    "auctioned": AUCTION_MICRO,
    "expired": WORK_MICRO,
}
REFUND_MICRO: Final = 100_000
# The nodes that each agent is paid for.
_PAID_NODES: Final = {
    WORKER: [WORK_MICRO] * 14,
    SIGNED: [SIGN_MICRO],
    METERED: [METER_MICRO],
    CHEAP: [AUCTION_MICRO],
    DEAR: [],
    JUDGE: [JUDGE_MICRO],
    REVOKED: [],
}
# What is to be seen of each unfinished workflow before the deployment is stopped.
_STOPPED_AT: Final = {
    "dispatched": ("a", "dispatched"),
    "half_paid": ("b", "dispatched"),
    "accepted": ("a", "running"),
    "backing_off": ("a", "ready"),
    "large": ("b", "dispatched"),
    "verified": ("a", "running"),
    "metered": ("a", "dispatched"),
    "signed": ("a", "dispatched"),
    "expired": ("b", "dispatched"),
}


def balances_micro(fee_bps: int = 500) -> dict[str, int]:
    """Return every wallet's balance, and the fee's, when all has ended and the dispute is decided.

    The half of a node's price that is refunded comes from its agent and from the fee, as they
    had it.
    """
    parts = {
        did: [split_payment(micro, fee_bps) for micro in paid] for did, paid in _PAID_NODES.items()
    }
    refund = split_payment(REFUND_MICRO, fee_bps)
    found = {did: sum(part.agent_micro for part in split) for did, split in parts.items()}
    found[WORKER] -= refund.agent_micro
    found["fee"] = sum(part.fee_micro for split in parts.values() for part in split)
    found["fee"] -= refund.fee_micro
    found[PAYER] = DEPOSIT_MICRO - sum(SPENT_MICRO.values()) + REFUND_MICRO
    found[OWNER] = DEPOSIT_MICRO - len(STAKED) * STAKE_CREDITS * CREDIT
    return found


# -- agents ----------------------------------------------------------------------------------------


def succeed(dispatch: Json) -> tuple[int, Json]:
    """Do any work, and approve of any."""
    return _done(dispatch, inputs=dispatch["inputs"])


def stalling(gate: threading.Event) -> Answer:
    """Return what agents answer until the deployment is stopped, as each dispatch asks for.

    Args:
        gate: what is held is answered when it opens.
    """

    def reply(dispatch: Json) -> tuple[int, Json]:
        manner = dispatch["inputs"].get("manner")
        if manner == "hold" or dispatch["eventId"].endswith("#verify"):
            gate.wait()
        if manner == "later":
            return 202, {"ok": True}
        if manner == "busy":
            return 503, {"__retry_after": 30}
        return _done(dispatch, text=LARGE) if manner == "large" else _done(dispatch)

    return reply


def _done(dispatch: Json, **result: Any) -> tuple[int, Json]:
    return 200, {
        "eventId": dispatch["eventId"],
        "status": "success",
        "result": {"n": 1, "approved": True, **result},
        "metrics": TOKENS,
    }


def _cards(endpoint: str) -> dict[str, Json]:
    prices: dict[str, tuple[str, Json]] = {
        WORKER: (WORK, {"price_cents": 20}),
        SIGNED: (SIGN, {"price_cents": 10}),
        METERED: (METER, {"pricing": RATES}),
        CHEAP: (AUCTION, {"price_cents": 90}),
        DEAR: (
            AUCTION,
            {"price_cents": 90, "standingBid": {"bidAmount": STANDING_BID_CREDITS}},
        ),
        JUDGE: (VERIFY, {"price_cents": 5}),
        REVOKED: (WORK, {"price_cents": 0}),
    }
    return {
        did: {
            "did": did,
            "endpoint": endpoint,
            "version": 1,
            "capabilities": [{"id": capability, "description": "A dump's", **price}],
        }
        for did, (capability, price) in prices.items()
    }


# -- workflows -------------------------------------------------------------------------------------


def _node(manner: str = "", capability: str = WORK, **node: Any) -> Json:
    payload = {"manner": manner} if manner else {}
    return {"capabilityId": capability, "payload": payload, **node}


def _chain(first: str = "", second: str = "", *, member: str = "n", **settings: Any) -> Json:
    """Return a manifest of two nodes; the second takes a member of the first one's result."""
    mapped = {"dependsOn": ["a"], "inputMappings": {member: f"$.a.result.{member}"}}
    nodes = {"a": _node(first), "b": _node(second, **mapped)}
    return {"intent": "the work of a dump", "nodes": nodes, "settings": settings}


def _manifests() -> dict[str, Json]:
    """Return all workflows but the auctioned one, the finished one first."""
    later = _chain("later")
    later["nodes"]["a"]["timeoutMs"] = 24 * 3_600_000
    return {
        "finished": _chain(),
        "dispatched": _chain("hold"),
        "half_paid": _chain("", "hold"),
        "accepted": later,
        "backing_off": _chain("busy"),
        "large": _chain("large", "hold", member="text"),
        "verified": {"nodes": {"a": _node(requiresVerification=True)}},
        "metered": {"nodes": {"a": _node("hold", METER, maxCostCredits=1)}},
        "signed": {"nodes": {"a": _node("hold", SIGN)}},
        "expired": _chain("", "hold", maxRuntimeMs=EXPIRES_MS),
    }


def begin(deployment: RunningDeployment, agents: StubAgent) -> Json:
    """Let a new deployment come to have some of everything; return what its callers know of it.

    Args:
        agents: they answer as `stalling` says.
    """
    with ExitStack() as stack:
        admin = stack.enter_context(client(deployment.url, deployment.admin_key))
        keys = {did: _make_key(admin, did) for did in (PAYER, OWNER, JUDGE_OWNER)}
        payer, owner, judge = (
            stack.enter_context(client(deployment.url, key)) for key in keys.values()
        )
        for did in (PAYER, OWNER):
            deposit = {"amount": DEPOSIT_MICRO // CREDIT, "ownerDid": did}
            answer(admin.post("/v1/ledger/deposit", json=deposit))
        _register(admin, owner, judge, agents.url)
        ids = {
            name: str(answer(payer.post("/v1/workflows/publish", json=manifest))["workflowId"])
            for name, manifest in _manifests().items()
        }
        wait(lambda: _record(payer, ids["finished"])["status"] == "success", "a finished workflow")
        complaint = {"disputeType": "quality", "description": "It is not what was asked for."}
        body = {"workflowId": ids["finished"], "nodeId": "a", **complaint}
        dispute = answer(payer.post("/v1/disputes", json=body))
        for name, (node, status) in _STOPPED_AT.items():
            wait(
                lambda name=name, node=node, status=status: (  # type: ignore[misc]
                    _record(payer, ids[name])["nodes"][node]["status"] == status
                ),
                f"{name}: {node} {status}",
            )
        ids["auctioned"] = _open_auction(payer, owner)
    (accepted,) = (one for one in agents.dispatches if one["workflowId"] == ids["accepted"])
    return {
        "keys": keys,
        "workflows": ids,
        "disputeId": dispute["id"],
        "accepted": {name: accepted[name] for name in ("workflowId", "nodeId", "resultId")},
    }


def _make_key(admin: httpx.Client, did: str) -> str:
    body = {"ownerDid": did, "rateClass": "unlimited"}
    return str(answer(admin.post("/v1/keys", json=body))["key"])


def _register(admin: httpx.Client, owner: httpx.Client, judge: httpx.Client, endpoint: str) -> None:
    """Register the agents; each is heard of once, and none after the stop."""
    for did, card in _cards(endpoint).items():
        secret = {"signingSecret": SIGNING_SECRET} if did == SIGNED else {}
        caller = judge if did == JUDGE else owner
        body = {"acard": card, **secret}
        if did == JUDGE:  # trusted
            answer(admin.post("/v1/agents/register", json={**body, "ownerDid": JUDGE_OWNER}))
        else:
            answer(owner.post("/v1/agents/register", json=body))
        answer(caller.post("/v1/heartbeat", json={"did": did, "load": 0}))
    for did in STAKED:
        answer(owner.post("/v1/stakes", json={"amount": STAKE_CREDITS, "agentDid": did}))
    lie = {"did": REVOKED, "reason": "It lies.", "evidence": {"seen": 1}}
    answer(admin.post("/v1/trust/revoke", json=lie))


def _record(caller: httpx.Client, workflow_id: str) -> Mapping[str, Any]:
    return answer(caller.get(f"/v1/workflows/{workflow_id}"))


def _open_auction(payer: httpx.Client, owner: httpx.Client) -> str:
    """Publish a workflow whose node is being auctioned, and bid; its window outlasts the stop."""
    node = _node(
        capability=AUCTION, selection="auction", auctionWindowMs=WINDOW_MS, maxCostCredits=1
    )
    published = answer(payer.post("/v1/workflows/publish", json={"nodes": {"a": node}}))
    workflow_id = str(published["workflowId"])
    bid = {"agentDid": CHEAP, "bidAmount": LIVE_BID_CREDITS}
    answer(owner.post(f"/v1/auctions/{workflow_id}/a/bids", json=bid))
    return workflow_id
