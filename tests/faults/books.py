"""What must be true of the books whatever was killed, asked of the database itself."""

from __future__ import annotations

from typing import Any

import psycopg

from scripts.books import CHECKS
from tests.faults import market_books
from tests.faults.victims import superuser_url
from tests.ledger.checking import EVENT_VIEW
from tests.platform.deployments import RunningDeployment


def books_problems(deployment: RunningDeployment) -> dict[str, list[Any]]:
    """Return every check that found rows, with the first few of them."""
    found: dict[str, list[Any]] = {}
    with _connected(deployment) as connection:
        for sentence, query in (CHECKS | market_books.CHECKS).items():
            rows = connection.execute(query).fetchmany(5)
            if rows:
                found[sentence] = rows
        wrong = market_books.wrong_reputation(connection)
        if wrong:
            found["reputation is not what history gives"] = list(wrong.items())
    return found


def market_totals(deployment: RunningDeployment) -> dict[str, int]:
    """Return how much of each part of the market the deployment has seen."""
    with _connected(deployment) as connection:
        return market_books.seen(connection)


def bids_on_the_chain(deployment: RunningDeployment, did: str) -> set[str]:
    """Return the workflows whose closed auctions name a bid of this agent."""
    with _connected(deployment) as connection:
        return {row[0] for row in connection.execute(market_books.BIDDEN, (did,)).fetchall()}


def _connected(deployment: RunningDeployment) -> psycopg.Connection[Any]:
    connection = psycopg.connect(superuser_url(deployment), options="-c search_path=callboard")
    connection.execute(EVENT_VIEW)
    return connection
