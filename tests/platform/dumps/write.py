"""Writes a deployment's dump: `python -m tests.platform.dumps.write NAME`.

It makes `NAME.sql` and, beside it, `NAME.json`, which is what the deployment's callers know. The
deployment of `work.py` is killed in the middle of its work. Run it when a release changes what
rows say; what it has written is kept.

No workflow may run for longer than 30 days, and the dump is to be finished years later: the writer
moves the deadlines of all workflows but one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import psycopg

from ledger.embedded.server import DATABASE, SUPERUSER
from ledger.migrate import migrate
from serve_app.supervisor.deployment import Deployment
from tests.contract.stub_agent import stub_agent
from tests.ledger.dumps.restoring import add_old_entries, dump
from tests.platform.deployments import free_port, start_deployment
from tests.platform.dumps import work
from tests.platform.dumps.restoring import FOLDER, move_agents, postgres_of, prepare_home

# 2100-01-01.
FAR_MS = 4_102_444_800_000


def main(name: str) -> None:
    """Write the dump of this name."""
    with tempfile.TemporaryDirectory(prefix="cbd-") as folder:
        home = Path(folder, "home")
        prepare_home(home)
        with postgres_of(home) as server:
            migrate(server.owner_url)
            add_old_entries(server.url_for(SUPERUSER, DATABASE))
        known, endpoint = _work_until_killed(home)
        with postgres_of(home) as server:
            url = server.url_for(SUPERUSER, DATABASE)
            with psycopg.connect(url, options="-c search_path=callboard") as connection:
                _move_deadlines(connection, known["workflows"]["expired"])
                move_agents(connection, endpoint, work.NOWHERE)
            dump(url, FOLDER / f"{name}.sql")
        text = json.dumps(known, indent=2) + "\n"
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


def _work_until_killed(home: Path) -> tuple[Any, str]:
    """Return what the callers know, and where the agents listened."""
    gate = threading.Event()
    with stub_agent(work.stalling(gate)) as agents:
        running = start_deployment(home, port=free_port())
        try:
            known = work.begin(running, agents)
            supervisor = Deployment(home, Path()).holder()
            assert supervisor is not None, "it is up"
            os.kill(supervisor, signal.SIGKILL)
        finally:
            running.down()
            gate.set()  # no sooner: its owner would hear of it
    return known, agents.url


def _move_deadlines(connection: psycopg.Connection[Any], expired: str) -> None:
    moved = connection.execute(
        "UPDATE workflow SET deadline_ms = %s WHERE completed_ms IS NULL AND id <> %s",
        (FAR_MS, expired),
    )
    assert moved.rowcount == len(work.SPENT_MICRO) - 2, "all but the finished and the expired one"
    connection.execute("UPDATE node SET deadline_ms = %s WHERE status = 'running'", (FAR_MS,))


if __name__ == "__main__":
    main(sys.argv[1])
