"""Writes a dump: `python -m tests.ledger.dumps.write NAME` makes `tests/ledger/dumps/NAME.sql`.

The ledger of `work.py`, stopped in the middle of its work. Run it when a release freezes new
migrations; what it has written is kept.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from ledger.embedded.server import DATABASE, SUPERUSER, EmbeddedPostgres
from ledger.migrate import migrate
from tests.ledger.dumps.restoring import FOLDER, add_old_entries, dump
from tests.ledger.dumps.work import begin


def main() -> None:
    """Write the dump named on the command line."""
    with tempfile.TemporaryDirectory(prefix="cbd-") as folder:
        home, run_folder = Path(folder, "home"), Path(folder, "run")
        home.mkdir()
        run_folder.mkdir(mode=0o700)
        server = EmbeddedPostgres(home, run_folder)
        server.start()
        try:
            migrate(server.owner_url)
            add_old_entries(server.url_for(SUPERUSER, DATABASE))
            asyncio.run(begin(server.database_url))
            dump(server.url_for(SUPERUSER, DATABASE), FOLDER / f"{sys.argv[1]}.sql")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
