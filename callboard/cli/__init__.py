"""The command line: one module per noun, loaded without the libraries its verbs need.

design.md section 6.
"""

from __future__ import annotations

import typer

from callboard.cli import (
    agents,
    audit,
    demonstration,
    deployment,
    keys,
    ledger,
    market,
    reviews,
    workflows,
)

app = typer.Typer(
    name="callboard",
    help="Publish workflows, pay agents out of escrow, prove what happened.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
deployment.add_to(app)
demonstration.add_to(app)
app.add_typer(workflows.app, name="workflow")
app.add_typer(agents.app, name="agent")
app.add_typer(ledger.app, name="ledger")
app.add_typer(audit.app, name="audit")
app.add_typer(keys.app, name="key")
app.add_typer(market.price, name="price")
app.add_typer(market.stake, name="stake")
app.add_typer(market.reputation, name="reputation")
app.add_typer(market.quota, name="quota")
app.add_typer(market.auction, name="auction")
app.add_typer(market.bid, name="bid")
app.add_typer(reviews.invoice, name="invoice")
app.add_typer(reviews.dispute, name="dispute")
app.add_typer(reviews.feedback, name="feedback")
app.add_typer(reviews.task, name="task")


def main() -> None:
    """Run the command line."""
    app()
