"""Stakes and reputation of agents, and registered prices of capabilities.

Reference: money.md (Stakes, Reputation, Prices). Decision stakes-and-slashing.
"""

from __future__ import annotations

from typing import Any

from core.errors import ErrorCode, Problem, ProblemList, ServiceError
from core.json_text import read_json
from core.market.pricing import PER_TOKEN, FixedPrice, Price, asks_price, parse_price
from core.market.standing_bid import standing_offers
from core.money import MICRO_PER_CENT, credits_number
from core.records.api.market import Price as RegisteredPrice
from core.records.api.market import (
    PriceRequest,
    PriceSet,
    Rebuild,
    Reputation,
    ReputationCompared,
    Slash,
    Stake,
    StakeChange,
    StakeMoved,
    StakeSlashed,
)
from core.records.api.shape import refused
from core.trust.access import ADMIN, SET_PRICES
from ledger.features.accounts import reputation_row, stake_row
from ledger.features.agents import RebuildReputation
from ledger.features.prices import SetPrice, price_of_row, price_row, registered_prices
from ledger.features.reputation import corrections, read_compared
from ledger.features.stakes import DepositStake, SlashStake, WithdrawStake
from serve_app.http.calls import (
    Call,
    Json,
    Operations,
    Repeats,
    Reply,
    replayed,
)
from serve_app.operations.views import counts_record, iso_time, reputation_record, stake_record
from serve_app.operations.visibility import known_did, money_did_in_path

OPERATIONS = Operations("market", "agents")

# The most differing agents that a comparison lists.
DIFFERENCES_MAX = 100


@OPERATIONS.add(
    "POST",
    "/v1/stakes",
    body=StakeChange,
    reply=StakeMoved,
    errors=(ErrorCode.INSUFFICIENT_CREDITS,),
    repeats=Repeats.BY_COMMAND,
)
async def deposit_stake(call: Call) -> Reply:
    """Add credits to the stake of an agent."""
    return await _moved(call, DepositStake)


@OPERATIONS.add(
    "POST",
    "/v1/stakes/unstake",
    body=StakeChange,
    reply=StakeMoved,
    errors=(ErrorCode.STAKE_LOCKED,),
    repeats=Repeats.BY_COMMAND,
)
async def withdraw_stake(call: Call) -> Reply:
    """Withdraw free credits from the stake of an agent."""
    return await _moved(call, WithdrawStake)


async def _moved(call: Call, kind: type[DepositStake | WithdrawStake]) -> Reply:
    body = call.given(StakeChange)
    agent_did = body.agent_did or call.caller.did
    command = kind(
        request_hash=call.request_hash,
        agent_did=agent_did,
        amount_micro=body.amount,
    )
    outcome = await call.commit(command, until_known=True)
    moved = outcome.result
    return Reply(
        {
            "success": True,
            "id": agent_did,
            **stake_record(agent_did, moved["freeMicro"], moved["lockedMicro"], moved["updatedMs"]),
            "walletDid": moved["walletDid"],
            "balance": credits_number(moved["balanceMicro"]),
        },
        headers=replayed(outcome),
    )


@OPERATIONS.add(
    "POST",
    "/v1/stakes/slash",
    scope=ADMIN,
    body=Slash,
    reply=StakeSlashed,
    errors=(ErrorCode.NOT_FOUND,),
    repeats=Repeats.BY_COMMAND,
)
async def slash_stake(call: Call) -> Reply:
    """Slash the stake that an agent has locked for a node (administrators).

    The slashed credits go to the workflow's payer.
    """
    body = call.given(Slash)
    command = SlashStake(
        request_hash=call.request_hash,
        agent_did=body.agent_did,
        workflow_id=body.workflow_id,
        node=body.node_id,
        reason=body.reason,
        slash_bps=call.services.settings.slash_fraud_bps,
    )
    outcome = await call.commit(command, until_known=True)
    slashed = outcome.result
    did, free_micro, locked_micro = command.agent_did, slashed["freeMicro"], slashed["lockedMicro"]
    stake = stake_record(did, free_micro, locked_micro, None)
    return Reply(
        {
            "success": True,
            "id": did,
            **{name: value for name, value in stake.items() if name != "updatedAt"},
            "workflowId": command.workflow_id,
            "nodeId": command.node,
            "payerDid": slashed["payerDid"],
            "creditsSlashed": credits_number(slashed["slashedMicro"]),
        },
        headers=replayed(outcome),
    )


@OPERATIONS.add("GET", "/v1/stakes/{did}", reply=Stake)
async def get_stake(call: Call) -> Json:
    """Read an agent's stake."""
    did = await money_did_in_path(call, "the stake")
    row = await stake_row(call.services.reader, did)
    if row is None:
        return stake_record(did, 0, 0, None)
    return stake_record(did, row["free_micro"], row["locked_micro"], row["updated_ms"])


@OPERATIONS.add("GET", "/v1/reputation/{did}", reply=Reputation)
async def get_reputation(call: Call) -> Json:
    """Read an agent's reputation.

    The score is computed from the outcomes that currently count. Without outcomes the score is
    neutral. For an agent that asks a price, only outcomes of paid work count.
    """
    did = call.path_values["did"]
    known = await known_did(call, did)
    tally, updated_ms = await reputation_row(call.services.reader, known)
    counted = tally.counted(asks_price=await _asks_price(call, known))
    return reputation_record(did, counted, updated_ms)


async def _asks_price(call: Call, did: str) -> bool:
    row = await call.services.reader.agent(did)
    if row is None:
        return False
    offered = read_json(row["card"])["capabilities"]
    own = {one["id"]: parse_price(one)[0] for one in offered}
    prices = await registered_prices(call.services.reader, list(own))
    return asks_price(own, prices, has_bid=bool(standing_offers(offered)))


@OPERATIONS.add(
    "POST",
    "/v1/reputation/rebuild",
    scope=ADMIN,
    body=Rebuild,
    is_body_optional=True,
    reply=ReputationCompared,
)
async def rebuild_reputation(call: Call) -> Json:
    """Rebuild all reputations from history, or only compare them (administrators)."""
    counts, read_audit_id = await read_compared(call.services.reader)
    differing = {did: pair for did, pair in counts.items() if pair[0] != pair[1]}
    reply = {
        "success": True,
        "isSame": not differing,
        "agents": len(counts),
        "differences": [
            {"agentDid": did, "stored": counts_record(stored), "found": counts_record(found)}
            for did, (stored, found) in list(differing.items())[:DIFFERENCES_MAX]
        ],
    }
    if call.given(Rebuild).check:
        return {**reply, "rebuilt": 0}
    command = RebuildReputation(changes=corrections(counts), read_audit_id=read_audit_id)
    outcome = await call.commit(command)
    return {**reply, "rebuilt": outcome.result["changed"]}


@OPERATIONS.add(
    "PUT",
    "/v1/capabilities/{capability_id}/price",
    scope=SET_PRICES,
    body=PriceRequest,
    reply=PriceSet,
)
async def set_price(call: Call) -> Json:
    """Set the price of a capability (operators)."""
    capability_id = call.path_values["capability_id"]
    price = _price(call.given(PriceRequest), capability_id)
    outcome = await call.commit(
        SetPrice(capability_id=capability_id, price=price), until_known=True
    )
    return {
        "success": True,
        "id": capability_id,
        **_priced(capability_id, price),
        "setByDid": call.caller.did,
        "updatedAt": iso_time(outcome.result["updatedMs"]),
    }


@OPERATIONS.add(
    "GET",
    "/v1/capabilities/{capability_id}/price",
    scope="capabilities:read",
    reply=RegisteredPrice,
)
async def get_price(call: Call) -> Json:
    """Read a capability's registered price."""
    capability_id = call.path_values["capability_id"]
    row = await price_row(call.services.reader, capability_id)
    if row is None:
        detail = f"no registered price for {capability_id}: agents ask the prices of their cards"
        raise ServiceError(ErrorCode.NOT_FOUND, detail)
    return {
        **_priced(capability_id, price_of_row(row)),
        "setByDid": row["set_by_did"],
        "updatedAt": iso_time(row["updated_ms"]),
    }


def _price(body: PriceRequest, capability_id: str) -> Price:
    problems = ProblemList()
    if body.capability_id not in (None, capability_id):
        problems.append(Problem("capabilityId", str(body.capability_id), capability_id))
    members = {"price_cents": body.price_cents, "pricing": body.pricing}
    price, more = parse_price(members, is_required=True)
    problems.extend(more)
    if price is None or problems:
        raise refused(problems)
    return price


def _priced(capability_id: str, price: Price) -> dict[str, Any]:
    """Return the JSON record of a price."""
    if isinstance(price, FixedPrice):
        return {"capabilityId": capability_id, "price_cents": price.micro // MICRO_PER_CENT}
    # A rate has at most 15 significant digits, so the double prints as the registered decimal.
    rates = {"inputRate": float(price.input_rate), "outputRate": float(price.output_rate)}
    return {"capabilityId": capability_id, "pricing": {"model": PER_TOKEN, **rates}}
