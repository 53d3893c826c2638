"""Dumps of whole ledgers, which are written when migrations freeze and then kept."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Final

import orjson
import psycopg

from core.records.audit import LIFE_EVENTS
from ledger.embedded.server import bin_folder

FOLDER: Final = Path(__file__).parent
# Real bodies of entries from when each event had an entry of its own.
OLD_ENTRIES: Final = FOLDER / "entries_per_event.jsonl"


def add_old_entries(url: str) -> int:
    """Let an empty ledger's chain begin with entries of before; return how many there are."""
    bodies = OLD_ENTRIES.read_bytes().splitlines()
    with psycopg.connect(url, options="-c search_path=callboard") as connection:
        connection.execute("SELECT set_config('callboard.epoch', epoch::text, true) FROM head")
        for body in bodies:
            entry = orjson.loads(body)
            is_of_workflow = entry["targetType"] == "workflow"
            connection.execute(
                "INSERT INTO audit"
                " (id, event_types, actor_did, workflow_id, created_ms, body, hash)"
                " VALUES (%s, ARRAY[%s], %s, %s,"
                " (extract(epoch FROM %s::timestamptz) * 1000)::bigint, %s, %s)",
                (
                    entry["id"],
                    entry["eventType"],
                    entry["actorDid"],
                    entry["targetId"] if is_of_workflow else None,
                    entry["createdAt"],
                    body.decode(),
                    hashlib.sha256(body).digest(),
                ),
            )
        connection.execute(
            "INSERT INTO audit_event SELECT id, number, event_type, target_type, target_id"
            " FROM (SELECT id, 0 AS number, event_types[1] AS event_type,"
            " body::json ->> 'targetType' AS target_type, body::json ->> 'targetId' AS target_id"
            " FROM audit) said WHERE event_type <> ALL (%s)",
            (sorted(LIFE_EVENTS),),
        )
    return len(bodies)


def dump(url: str, target: Path) -> None:
    """Write a database as SQL."""
    command = [bin_folder() / "pg_dump", "--dbname", url, "--file", target]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr


def restore(url: str, source: Path) -> None:
    """Fill an empty database, of a server that has the roles, from a dump."""
    read = subprocess.run(
        [
            bin_folder() / "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1",
            "--dbname", url, "--file", source,
        ],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert read.returncode == 0, read.stderr
    with psycopg.connect(url) as connection:
        # The nodes of the dump do not say how they count: nothing of them is in the counts.
        connection.execute("DELETE FROM callboard.reputation")
