"""The command line: one module per noun, loaded without the libraries its verbs need."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from callboard.cli import (
    agents,
    audit,
    capabilities,
    cluster,
    identity,
    ledger,
    market,
    peers,
    receipts,
    reviews,
    subnets,
    triggers,
    webhooks,
    workflows,
)
from callboard.cli.session import EXIT_USAGE, stop

# The verbs of `deployment.py`, which is part of `callboard-server`.
SERVER_VERBS = ("up", "join", "down", "settings", "demo")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(f"callboard {version('callboard')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Publish workflows, pay agents out of escrow, prove what happened."""


app = typer.Typer(
    name="callboard",
    callback=_options,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(workflows.app, name="workflow", rich_help_panel="Use")
app.add_typer(agents.app, name="agent", rich_help_panel="Use")
app.add_typer(capabilities.app, name="capability", rich_help_panel="Use")
app.add_typer(ledger.app, name="ledger", rich_help_panel="Use")
app.add_typer(audit.app, name="audit", rich_help_panel="Operate")
app.add_typer(identity.key_app, name="key", rich_help_panel="Operate")
app.add_typer(identity.app, name="name", rich_help_panel="Use")
app.add_typer(identity.heir_app, name="heir", rich_help_panel="Use")
app.add_typer(identity.recovery_app, name="recovery", rich_help_panel="Use")
app.add_typer(market.price, name="price", rich_help_panel="Operate")
app.add_typer(market.stake, name="stake", rich_help_panel="Use")
app.add_typer(market.reputation, name="reputation", rich_help_panel="Operate")
app.add_typer(market.quota, name="quota", rich_help_panel="Operate")
app.add_typer(market.auction, name="auction", rich_help_panel="Use")
app.add_typer(market.bid, name="bid", rich_help_panel="Use")
app.add_typer(reviews.invoice, name="invoice", rich_help_panel="Use")
app.add_typer(reviews.dispute, name="dispute", rich_help_panel="Use")
app.add_typer(reviews.feedback, name="feedback", rich_help_panel="Use")
app.add_typer(reviews.task, name="task", rich_help_panel="Use")
app.add_typer(receipts.app, name="receipt", rich_help_panel="Use")
app.add_typer(triggers.schedules, name="schedule", rich_help_panel="Use")
app.add_typer(triggers.hooks, name="hook", rich_help_panel="Use")
app.add_typer(subnets.subnets, name="subnet", rich_help_panel="Use")
app.add_typer(subnets.policies, name="policy", rich_help_panel="Use")
app.add_typer(webhooks.app, name="webhook", rich_help_panel="Use")
app.add_typer(peers.app, name="peer", rich_help_panel="Operate")


def add_server_verbs(app: typer.Typer, *, is_installed: bool) -> None:
    """Add the verbs that need the service, or in their place what says how to install it.

    Args:
        app: where to.
        is_installed: whether `callboard-server` is.
    """
    if is_installed:
        from callboard.cli import deployment

        deployment.add_to(app)
        return
    for name in SERVER_VERBS:
        app.command(
            name,
            help=r"Not installed; it needs callboard\[server].",
            rich_help_panel="Run",
            context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
            add_help_option=False,
        )(_needs_server)


def _needs_server(context: typer.Context) -> None:
    stop(EXIT_USAGE, f"`{context.info_name}` needs the server: pip install 'callboard[server]'")


# Looked for, not imported: an error within an installed server must not read as a missing one.
add_server_verbs(app, is_installed=find_spec("callboard.cli.deployment") is not None)
# In the order of the panels of the help.
agents.add_to(app)
cluster.add_to(app)
peers.add_to(app)
audit.add_to(app)


def main() -> None:
    """Run the command line."""
    app()
