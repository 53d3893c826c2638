"""Auctions of nodes: reading an auction, and bidding.

The payer, administrators, and callers whose agent offers the capability or has bid may see an
auction. They see the bids of a round only after the round is closed. A standing bid is shown only
to its agent, the agent's owner and administrators.
Reference: money.md (Auctions). Decision auctions.
"""

from __future__ import annotations

from typing import Any

from core.errors import ErrorCode, ServiceError
from core.market.standing_bid import Offer
from core.money import credits_number
from core.records.api.market import Auction, Bid, BidRequest
from core.records.manifest import StoredNode
from ledger.features.auctions import (
    NO_ROUND,
    KeepBid,
    PlaceBid,
    auction_rows,
    bid_key,
    bid_rows,
    can_bid,
)
from ledger.reads.reader import RowDict
from serve_app.http.calls import Call, Json, Operations, invalid, not_found
from serve_app.operations.views import auction_record, iso_time

OPERATIONS = Operations("auctions", "workflows")


@OPERATIONS.add("GET", "/v1/auctions/{workflow_id}/{node}", reply=Auction)
async def show(call: Call) -> Json:
    """Read the auction of a node."""
    workflow_id, node, rounds = await _in_path(call)
    bids = await bid_rows(call.services.reader, workflow_id, node, call.viewer_did)

    for row in rounds:
        if row["winner_did"] is not None and await call.is_hidden(row["winner_did"]):
            row |= {"winner_did": None, "price_micro": None}

    def may_read(bid_table: RowDict) -> bool:
        return not bid_table["is_standing"] or call.may(
            (bid_table["agent_did"], bid_table["owner_did"])
        )

    return auction_record(rounds, bids, may_read)


@OPERATIONS.add("POST", "/v1/auctions/{workflow_id}/{node}/bids", body=BidRequest, reply=Bid)
async def place_bid(call: Call) -> Json:
    """Bid for a node."""
    body = call.given(BidRequest)
    offer = Offer(body.bid_amount, body.eta_ms, body.stake_offered)
    offered = (body.agent_did or call.caller.did, offer)
    return await bid_in(call, offered, *await _in_path(call))


async def bid_in(
    call: Call, offered: tuple[str, Offer], workflow_id: str, node: str, rounds: list[RowDict]
) -> dict[str, Any]:
    """Place a bid in the last round of an auction that the caller may see, and return the reply.

    Args:
        call: the request.
        offered: the DID of the agent, and its offer.
        workflow_id, node: the node that is auctioned.
        rounds: the rows of the auction's rounds, in order.

    Raises:
        ServiceError: CONFLICT, FORBIDDEN, INVALID_REQUEST or another refusal of the ledger.
    """
    agent_did, offer = offered
    last = rounds[-1]
    if last["status"] != "open":
        raise ServiceError(ErrorCode.CONFLICT, f"the auction is {last['status']}, expected open")
    await _check_bidder(call, agent_did, last["capability_id"])
    command = PlaceBid(
        key=bid_key(workflow_id, node, last["round"], agent_did),
        request_hash=call.act_hash,
        agent_did=agent_did,
        workflow_id=workflow_id,
        node=node,
        round=last["round"],
        amount_micro=offer.amount_micro,
        eta_ms=offer.eta_ms,
        stake_offered_micro=offer.stake_micro,
    )
    return {
        **await _committed(call, command),
        "counted": True,
        "round": last["round"],
        "closesAt": iso_time(last["closes_ms"]),
    }


async def keep_bid(
    call: Call, offered: tuple[str, Offer], workflow_id: str, name: str, node: StoredNode
) -> dict[str, Any]:
    """Store a bid for a node that has no open auction, and return the reply.

    If the workflow has ended, the bid is not stored, but the reply is the same. So the reply to a
    bidder does not depend on how fast another agent has finished.

    Args:
        call: the request.
        offered: the DID of the agent, and its offer.
        workflow_id, name: the workflow and the name of the node.
        node: the node in the manifest.

    Raises:
        ServiceError: CONFLICT, FORBIDDEN, INVALID_REQUEST or another refusal of the ledger.
    """
    agent_did, offer = offered
    await _check_bidder(call, agent_did, node.offered_id)
    command = KeepBid(
        key=bid_key(workflow_id, name, NO_ROUND, agent_did),
        request_hash=call.act_hash,
        agent_did=agent_did,
        workflow_id=workflow_id,
        node=name,
        amount_micro=offer.amount_micro,
        eta_ms=offer.eta_ms,
        stake_offered_micro=offer.stake_micro,
        is_sealed=node.selection == "auction",
    )
    try:
        kept = await _committed(call, command)
    except ServiceError as error:
        if error.code is not ErrorCode.ESCROW_RELEASED:
            raise
        kept = _received(command, call.services.now_ms())
    return {**kept, "counted": False, "round": NO_ROUND, "closesAt": None}


async def _check_bidder(call: Call, agent_did: str, capability_id: str) -> None:
    """Refuse a bid for an agent of another owner, or for an agent without the capability.

    The ledger makes the same check, but only after it has looked for an earlier bid of the agent.
    So the ledger's refusal could disclose to any caller that the agent has bid.

    Raises:
        ServiceError: FORBIDDEN; INVALID_REQUEST.
    """
    known = await call.services.reader.agent(agent_did)
    if known is None or known["status"] != "active":
        return  # The ledger refuses the bid: no active agent has this DID.
    if not call.is_party((agent_did, known["owner_did"])) and not call.caller.is_admin:
        detail = f"only {agent_did}, its owner or an administrator may bid for it"
        raise ServiceError(ErrorCode.FORBIDDEN, detail)
    if capability_id not in known["capability_ids"]:
        raise invalid("agentDid", agent_did, f"an agent that offers {capability_id}")


async def _committed(call: Call, command: PlaceBid | KeepBid) -> dict[str, Any]:
    """Commit a bid, and return the members of the reply that describe the bid.

    Raises:
        ServiceError: CONFLICT for an agent's second bid, or another refusal of the ledger.
    """
    done = ServiceError(
        ErrorCode.CONFLICT,
        f"{command.agent_did} has already bid for node {command.node!r}: the first bid is final",
    )
    outcome = await call.commit(command, done=done)
    return _received(command, outcome.result["receivedMs"])


def _received(command: PlaceBid | KeepBid, received_ms: int) -> dict[str, Any]:
    """Return the members of a reply that describe a bid."""
    stake_micro = command.stake_offered_micro
    return {
        "ok": True,
        "success": True,
        "workflowId": command.workflow_id,
        "nodeId": command.node,
        "agentDid": command.agent_did,
        "bidAmount": credits_number(command.amount_micro),
        "etaMs": command.eta_ms,
        "stakeOffered": None if stake_micro is None else credits_number(stake_micro),
        "receivedAt": iso_time(received_ms),
    }


async def may_bid(call: Call, workflow_id: str, node: str, capability_id: str) -> bool:
    """Return whether the caller may see the auction of a node.

    The payer, administrators, and callers whose agent offers the capability or has bid may see it.
    """
    head = await call.services.reads.head(workflow_id, call.caller.did)
    payers = (head.workflow.payer_did,) if head is not None else ()
    return call.may(payers) or await can_bid(
        call.services.reader, call.caller.did, capability_id, workflow_id, node
    )


async def _in_path(call: Call) -> tuple[str, str, list[RowDict]]:
    """Return the workflow's id, the node and the rounds of the auction in the path.

    Raises:
        ServiceError: NOT_FOUND if the auction does not exist or is hidden from the caller.
    """
    workflow_id, node = call.path_values["workflow_id"], call.path_values["node"]
    rounds = await auction_rows(call.services.reader, workflow_id, node)
    if not rounds or not await may_bid(call, workflow_id, node, rounds[-1]["capability_id"]):
        raise not_found(f"the auction of {node!r} in the workflow {workflow_id}")
    return workflow_id, node, rounds
