"""`price`, `stake`, `reputation`, `quota`, `auction`, `bid`: what work costs and who may do it.

Reference: money.md (Prices, Stakes, Reputation, Quotas, Auctions).
"""

from __future__ import annotations

from typing import Annotated

import typer

from callboard.cli.calling import calling_verb
from callboard.cli.session import EXIT_UNSUCCESSFUL, Session, stop, verb

price = typer.Typer(help="Registered prices of capabilities.", no_args_is_help=True)
stake = typer.Typer(help="Stakes of agents.", no_args_is_help=True)
reputation = typer.Typer(help="Reputation of agents.", no_args_is_help=True)
quota = typer.Typer(help="Quotas of payers.", no_args_is_help=True)
auction = typer.Typer(help="Auctions of nodes.", no_args_is_help=True)
bid = typer.Typer(help="Bids for nodes.", no_args_is_help=True)

calling_verb(price, "show", "price", "Show a capability's price.", "capability")
calling_verb(
    price, "set", "set_price", "Set a capability's price: --cents, or both rates.", "capability",
    options="price_cents input_rate output_rate",
)  # fmt: skip
calling_verb(stake, "show", "stake", "Show an agent's stake.", "did")
calling_verb(stake, "deposit", "deposit_stake", "Deposit stake.", "credits", options="agent_did")
calling_verb(
    stake,
    "withdraw",
    "withdraw_stake",
    "Withdraw stake that is not locked.",
    "credits",
    options="agent_did",
)
calling_verb(
    stake, "slash", "slash_stake", "Give the stake locked for a node to its payer.",
    "did workflow node reason",
)  # fmt: skip

calling_verb(reputation, "show", "reputation", "Show an agent's reputation and its parts.", "did")


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


calling_verb(quota, "show", "quota", "Show a payer's limits.", "did")
calling_verb(
    quota, "set", "set_quota", "Set a payer's limits; an omitted option means no limit.", "did",
    options="workflows_per_day concurrent_workflows spend_per_day_cents",
)  # fmt: skip
calling_verb(
    quota, "check", "check_quota", "Check whether a payer can publish now.", "did",
    options="estimated_spend_cents",
)  # fmt: skip
calling_verb(
    auction, "show", "auction", "Show the auction of a node; bids are visible after it closes.",
    "workflow node",
)  # fmt: skip
calling_verb(
    bid, "place", "bid", "Bid for a node; bids are sealed and final.", "workflow node credits",
    options="eta_ms stake_credits agent_did",
)  # fmt: skip
