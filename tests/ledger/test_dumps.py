"""Ledgers of before, each stopped in the middle of its work, come to the present and finish it.

A dump of each frozen beginning is taken through every later migration, then the writer of now opens
it. Decision 0132.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from callboard.verify import events_of, verify_chain
from core.settings import Settings
from ledger.embedded.server import OWNER, SERVICE, SUPERUSER, EmbeddedPostgres
from ledger.migrate import migrate
from ledger.reads.reader import LedgerReader
from ledger.writer.group_commit import GroupCommit
from serve_app.operations.views import audit_record
from tests.conftest import Database
from tests.faults.scene import Scene
from tests.ledger import making
from tests.ledger.checking import Auditor
from tests.ledger.dumps import work
from tests.ledger.dumps.restoring import FOLDER, OLD_ENTRIES, restore
from tests.ledger.making import AGENT, CREDIT, GENESIS, PAYER

pytestmark = pytest.mark.anyio

DUMPS = sorted(path.stem for path in FOLDER.glob("*.sql"))


@pytest.fixture
def restored(
    request: pytest.FixtureRequest, postgres: EmbeddedPostgres, migrated_template: str
) -> Iterator[Database]:
    """A database as it was dumped; the server has the roles by the template."""
    name = f"restored_{request.param}"
    with psycopg.connect(postgres.superuser_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} OWNER {}").format(
                sql.Identifier(name), sql.Identifier(OWNER)
            )
        )
    database = Database(
        name, *(postgres.url_for(role, name) for role in (SERVICE, OWNER, SUPERUSER))
    )
    restore(database.superuser_url, FOLDER / f"{request.param}.sql")
    yield database
    with psycopg.connect(postgres.superuser_url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_the_frozen_beginning_has_a_dump() -> None:
    assert "schema_0001" in DUMPS


@pytest.mark.parametrize("restored", DUMPS, indirect=True)
async def test_a_dump_comes_to_the_present_and_its_work_is_finished(restored: Database) -> None:
    newest = migrate(restored.owner_url)
    assert migrate(restored.owner_url) == newest
    auditor = Auditor(restored.superuser_url)
    auditor.check()
    assert auditor.one("SELECT count(*) FROM escrow WHERE status = 'held'") == 4
    await work.finish(restored.service_url)
    auditor.check()
    balances = [auditor.balance(did) for did in (PAYER, AGENT, work.BIDDER)]
    assert balances == [work.PAYER_MICRO, work.EARNED_MICRO, work.BIDDER_MICRO]
    fee = "SELECT balance FROM account WHERE kind = 'fee'"
    assert auditor.one(fee) == work.FEE_MICRO
    rest = "SELECT sum(balance) FROM account WHERE kind IN ('escrow', 'stake_locked')"
    assert auditor.one(rest) == 0
    states = "SELECT array_agg(DISTINCT status) FROM workflow"
    assert auditor.one(states) == ["success"]
    auditor.close()
    async with LedgerReader(restored.service_url, pool_size=1) as reader:
        entries = [audit_record(row) for row in await reader.audit(limit=1_000)]
    old = len(OLD_ENTRIES.read_bytes().splitlines())
    assert verify_chain(entries).entries == len(entries) > old
    assert all(len(events_of(entry)) == 1 for entry in entries[-old:])


@pytest.mark.parametrize("restored", ["schema_0001"], indirect=True)
async def test_an_owner_ends_what_is_past_its_deadline_and_returns_the_rest(
    restored: Database,
) -> None:
    """Also with cards that no owner can read, as this dump has them."""
    migrate(restored.owner_url)
    auditor = Auditor(restored.superuser_url)
    commits = GroupCommit(restored.service_url, genesis=GENESIS, on_fatal=lambda _: None)
    await commits.start()
    settings = Settings(database_url=restored.service_url, deployment_key="11" * 32)
    scene = Scene(commits, settings, auditor)
    owner = await scene.owner(making.MEMBER)
    await scene.wait_ended()
    await owner.close()
    await commits.stop()
    auditor.check()
    assert scene.lost == []
    assert scene.counts() == {"success": 1, "timeout": 4}
    # `FINISHED` and `HALF_PAID` have paid for a node each; a deadline is no agent's fault.
    balances = [auditor.balance(did) for did in (PAYER, AGENT, work.BIDDER)]
    assert balances == [97 * CREDIT, 2_850_000, 0]
    query = "SELECT sum(balance) FROM account WHERE kind = %s"
    kinds = {kind: auditor.one(query, kind) for kind in ("fee", "stake", "stake_locked", "escrow")}
    assert kinds == {"fee": 150_000, "stake": 4 * CREDIT, "stake_locked": 0, "escrow": 0}
    auditor.close()
