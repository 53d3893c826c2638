"""A Postgres server of a benchmark's own, without a deployment."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ledger.embedded.server import EmbeddedPostgres


@contextmanager
def private_postgres(**options: int) -> Iterator[EmbeddedPostgres]:
    """Start a server, empty but for its roles; end it and remove its data after the block.

    Args:
        options: of `EmbeddedPostgres`, such as `max_connections`.
    """
    with tempfile.TemporaryDirectory(prefix="cbb-") as folder:
        home, run_folder = Path(folder, "pg"), Path(folder, "run")
        home.mkdir()
        run_folder.mkdir(mode=0o700)
        server = EmbeddedPostgres(home, run_folder, **options)
        server.start()
        try:
            yield server
        finally:
            server.stop()
