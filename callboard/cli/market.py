"""`price`, `stake`, `reputation`, `quota`, `auction`, `bid`: what work costs and who may do it.

Spec: Capability price, Stake, Reputation, Quota check result, Bid.
"""

from __future__ import annotations

from typing import Annotated

import typer

from callboard.cli.session import EXIT_UNSUCCESSFUL, EXIT_USAGE, Session, reading_verb, stop, verb

price = typer.Typer(help="Registered prices of capabilities.", no_args_is_help=True)
stake = typer.Typer(help="Stakes of agents.", no_args_is_help=True)
reputation = typer.Typer(help="Reputation of agents.", no_args_is_help=True)
quota = typer.Typer(help="Quotas of payers.", no_args_is_help=True)
auction = typer.Typer(help="Auctions of nodes.", no_args_is_help=True)
bid = typer.Typer(help="Bids for nodes.", no_args_is_help=True)

_Capability = Annotated[str, typer.Argument(help="The capability's ID.", metavar="CAPABILITY")]
_Did = Annotated[str, typer.Argument(help="The agent's or payer's DID.", metavar="DID")]
_Credits = Annotated[str, typer.Argument(help="Credits, at most 6 decimals.", metavar="CREDITS")]
_ForAgent = Annotated[
    str | None, typer.Option("--agent", help="The agent's DID; default: the caller.")
]
_Workflow = Annotated[str, typer.Argument(help="The workflow's ID.", metavar="WORKFLOW")]
_Node = Annotated[str, typer.Argument(help="The node's name.", metavar="NODE")]


reading_verb(price, "show", "price", "capability", "Show a capability's price.")


@verb(price, "set")
def set_price(
    session: Session,
    capability: _Capability,
    cents: Annotated[int | None, typer.Option(help="Whole cents per node.", min=0)] = None,
    input_rate: Annotated[str | None, typer.Option(help="Credits per input token.")] = None,
    output_rate: Annotated[str | None, typer.Option(help="Credits per output token.")] = None,
) -> None:
    """Set a capability's price: --cents, or both rates."""
    rates = (input_rate, output_rate)
    if (cents is None) is (rates == (None, None)) or (cents is None and None in rates):
        stop(EXIT_USAGE, "give --cents, or --input-rate and --output-rate")
    reply = session.client.set_price(
        capability, price_cents=cents, input_rate=input_rate, output_rate=output_rate
    )
    session.show_record(reply)


reading_verb(stake, "show", "stake", "did", "Show an agent's stake.")


@verb(stake, "deposit")
def deposit_stake(session: Session, amount: _Credits, agent: _ForAgent = None) -> None:
    """Deposit stake."""
    session.show_record(session.client.deposit_stake(amount, agent_did=agent))


@verb(stake, "withdraw")
def withdraw_stake(session: Session, amount: _Credits, agent: _ForAgent = None) -> None:
    """Withdraw stake that is not locked."""
    session.show_record(session.client.withdraw_stake(amount, agent_did=agent))


@verb(stake, "slash")
def slash_stake(
    session: Session,
    did: _Did,
    workflow_id: _Workflow,
    node: _Node,
    reason: Annotated[str, typer.Argument(help="Reason of the slash.", metavar="REASON")],
) -> None:
    """Slash the stake locked for a node; the credits go to the payer."""
    session.show_record(session.client.slash_stake(did, workflow_id, node, reason))


reading_verb(reputation, "show", "reputation", "did", "Show an agent's reputation and its parts.")


@verb(reputation, "rebuild")
def rebuild_reputation(
    session: Session,
    check: Annotated[bool, typer.Option(help="Compare without changes.")] = False,
) -> None:
    """Recompute all reputations from history; --check exits 1 on a difference."""
    reply = session.client.rebuild_reputation(check=check)
    session.show_record(reply)
    if check and not reply["isSame"]:
        stop(EXIT_UNSUCCESSFUL, "the stored counts differ from history")


reading_verb(quota, "show", "quota", "did", "Show a payer's limits.")


@verb(quota, "set")
def set_quota(
    session: Session,
    did: _Did,
    workflows_per_day: Annotated[int | None, typer.Option(help="Workflows per day.", min=0)] = None,
    concurrent: Annotated[int | None, typer.Option(help="Concurrent workflows.", min=0)] = None,
    spend_per_day: Annotated[int | None, typer.Option(help="Cents per day.", min=0)] = None,
) -> None:
    """Set a payer's limits; an omitted option means no limit."""
    reply = session.client.set_quota(
        did,
        workflows_per_day=workflows_per_day,
        concurrent_workflows=concurrent,
        spend_per_day_cents=spend_per_day,
    )
    session.show_record(reply)


@verb(quota, "check")
def check_quota(
    session: Session,
    did: _Did,
    spend: Annotated[int | None, typer.Option(help="Estimated cost in cents.", min=0)] = None,
) -> None:
    """Check whether a payer can publish now."""
    session.show_record(session.client.check_quota(did, estimated_spend_cents=spend))


@verb(auction, "show")
def show_auction(session: Session, workflow_id: _Workflow, node: _Node) -> None:
    """Show the auction of a node; bids are visible after it closes."""
    session.show_record(session.client.auction(workflow_id, node))


@verb(bid, "place")
def place_bid(
    session: Session,
    workflow_id: _Workflow,
    node: _Node,
    amount: _Credits,
    eta_ms: Annotated[int | None, typer.Option(help="Estimated milliseconds.", min=0)] = None,
    stake_offered: Annotated[str | None, typer.Option(help="Credits offered as stake.")] = None,
    agent: _ForAgent = None,
) -> None:
    """Bid for a node; bids are sealed and final."""
    reply = session.client.bid(
        workflow_id,
        node,
        amount,
        eta_ms=eta_ms,
        stake_credits=stake_offered,
        agent_did=agent,
    )
    session.show_record(reply)
