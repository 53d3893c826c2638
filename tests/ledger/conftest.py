"""A database that a module's tests share, and an auditor who looks at the books after each test."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from ledger.embedded.server import OWNER, SERVICE, SUPERUSER, EmbeddedPostgres
from tests.conftest import Database
from tests.ledger.checking import Auditor


@pytest.fixture
def auditor(database: Database) -> Iterator[Auditor]:
    """Sees everything (a superuser's connection); every test must leave sound books behind."""
    watching = Auditor(database.superuser_url)
    yield watching
    watching.check()
    watching.close()


@pytest.fixture(scope="module")
def shared_database(
    request: pytest.FixtureRequest, postgres: EmbeddedPostgres, migrated_template: str
) -> Iterator[Database]:
    """A migrated database for tests that leave nothing behind or do not mind each other."""
    name = "shared_" + request.module.__name__.rpartition(".")[2]
    with psycopg.connect(postgres.superuser_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} OWNER {}").format(
                sql.Identifier(name), sql.Identifier(migrated_template), sql.Identifier(OWNER)
            )
        )
    yield Database(
        name=name,
        service_url=postgres.url_for(SERVICE, name),
        owner_url=postgres.url_for(OWNER, name),
        superuser_url=postgres.url_for(SUPERUSER, name),
    )
    with psycopg.connect(postgres.superuser_url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
