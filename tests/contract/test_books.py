"""The check of the books in a deployment: run on request, shown in `/health`, printed.

Reference: money.md (Checking the books).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg
from typer.testing import CliRunner, Result

from callboard.cli import app
from tests.contract.conftest import Caller, MakeCaller, answer, wait
from tests.faults.victims import superuser_url
from tests.platform.deployments import RunningDeployment

CHECK = "/v1/ledger/check"


def check(deployment: RunningDeployment, *options: str) -> Result:
    """Run `callboard ledger check` as the administrator."""
    where = ("--url", deployment.url, "--api-key", deployment.admin_key)
    return CliRunner().invoke(app, ["ledger", "check", *where, *options])


@contextmanager
def wrong_balance(deployment: RunningDeployment, did: str) -> Iterator[None]:
    """Have one micro-credit too much in a wallet, past every guard."""
    change = "UPDATE callboard.account SET balance = balance + %s WHERE address = %s"
    with psycopg.connect(superuser_url(deployment), autocommit=True) as connection:
        connection.execute(change, (1, f"wallet:{did}"))
        try:
            yield
        finally:
            connection.execute(change, (-1, f"wallet:{did}"))


def test_the_first_wrong_row_is_named_until_it_is_right(
    deployment: RunningDeployment, make_caller: MakeCaller, admin: Caller, anonymous: httpx.Client
) -> None:
    victim = make_caller(7)
    with wrong_balance(deployment, victim.did):
        found = check(deployment)
        row = f"account wallet:{victim.did}: balance got 7000001, expected 7000000"
        assert found.exit_code == 1, found.output
        assert row in found.output
        # What everybody may read names the table alone.
        wait(lambda: not anonymous.get("/health").is_success, "the state of the books")
        body = answer(anonymous.get("/health"), 503)
        assert body["components"]["books"] == "unhealthy: a row of account is wrong"
        problem = answer(admin.http.get(CHECK))["problem"]
        assert problem == {
            "table": "account",
            "row": f"wallet:{victim.did}",
            "column": "balance",
            "got": "7000001",
            "expected": "7000000",
        }
    found = check(deployment, "--output", "json")
    assert found.exit_code == 0, found.output
    reply: dict[str, Any] = answer(admin.http.get(CHECK))
    assert reply["problem"] is None
    newest = answer(admin.http.get("/v1/ledger/transactions"))["transactions"][:1]
    assert reply["upToEntry"] >= max((one["id"] for one in newest), default=1)
    assert reply["rows"]["account"] >= 3
    wait(lambda: anonymous.get("/health").is_success, "the state of the books")


def test_a_requested_check_starts_after_the_request(admin: Caller) -> None:
    requested = answer(admin.http.post(CHECK))["requestedAt"]
    wait(lambda: (answer(admin.http.get(CHECK))["startedAt"] or "") >= requested, "the check")
    reply = answer(admin.http.get(CHECK))
    assert requested <= reply["startedAt"] <= reply["checkedAt"]


def test_a_check_is_not_waited_for_longer_than_asked(deployment: RunningDeployment) -> None:
    found = check(deployment, "--wait", "0")
    assert found.exit_code == 1
    assert "the check did not end within 0 s; it continues in the service" in found.output
