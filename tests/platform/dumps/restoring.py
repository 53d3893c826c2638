"""The folder of a deployment, with its dumped database in it.

Where agents listen is no part of a dump: their addresses are put in when it is restored. Entries of
the chain keep the addresses of then, because their hashes do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from ledger.embedded.server import DATABASE, SERVICE, SUPERUSER, EmbeddedPostgres
from serve_app.supervisor.deployment import Deployment, run_folder_of
from tests.ledger.dumps.restoring import restore
from tests.platform.dumps.work import DEPLOYMENT_KEY, NOWHERE, SETTINGS

FOLDER: Final = Path(__file__).parent
# A dump names them in its rights and does not make them.
_ROLES: Final = ("ledger_writer", "ledger_reader", "ops_writer")


def prepare_home(home: Path) -> None:
    """Make a deployment's folder with the settings and the key of the one that was dumped."""
    home.mkdir()
    (home / "callboard.toml").write_text(SETTINGS, encoding="utf-8")
    Deployment(home, Path()).deployment_key_file.write_text(DEPLOYMENT_KEY, encoding="ascii")


@contextmanager
def postgres_of(home: Path) -> Iterator[EmbeddedPostgres]:
    """Run the database of a deployment that is down."""
    deployment = Deployment(home, run_folder_of(home))
    deployment.make_run_folder()
    server = EmbeddedPostgres(home, deployment.run_folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        deployment.run_folder.rmdir()


def restore_home(home: Path, source: Path, endpoint: str) -> None:
    """Make a deployment's folder with a dump in its database.

    Args:
        source: the dump.
        endpoint: where its agents listen now.
    """
    prepare_home(home)
    with postgres_of(home) as server:
        with psycopg.connect(server.superuser_url, autocommit=True) as connection:
            for role in map(sql.Identifier, _ROLES):
                connection.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(role))
                member = sql.Identifier(SERVICE)
                connection.execute(sql.SQL("GRANT {} TO {}").format(role, member))
        url = server.url_for(SUPERUSER, DATABASE)
        restore(url, source)
        with psycopg.connect(url, options="-c search_path=callboard") as connection:
            move_agents(connection, NOWHERE, endpoint)


def move_agents(connection: psycopg.Connection[Any], before: str, after: str) -> None:
    """Change where all agents of an address listen, in their cards too."""
    moved = connection.execute(
        "UPDATE agent SET endpoint = %(after)s, card = replace(card, %(before)s, %(after)s)"
        " WHERE endpoint = %(before)s",
        {"before": before, "after": after},
    )
    assert moved.rowcount > 0, before
