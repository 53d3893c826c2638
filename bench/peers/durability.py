"""A figure without durability is none: what the servers say of themselves, and when to refuse."""

from __future__ import annotations

import re

import psycopg

# What every server has to answer. Postgres: SHOW; Restate: its loaded configuration.
POSTGRES = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
RESTATE = {
    "bifrost.local rocksdb-disable-wal": "false",
    "bifrost.local rocksdb-disable-wal-fsync": "false",
    "log-server rocksdb-disable-wal-fsync": "false",
}


class NotDurable(SystemExit):
    """A server does not write through to the disk: nothing is measured."""


def ask_postgres(url: str) -> dict[str, str]:
    """Return the server's answers on a connection of `url`, and settings of single roles."""
    with psycopg.connect(url, autocommit=True) as connection:
        answers = {
            name: str(connection.execute(f"SHOW {name}").fetchone()[0])  # type: ignore[index]
            for name in POSTGRES
        }
        rows = connection.execute("SELECT unnest(setconfig) FROM pg_db_role_setting").fetchall()
    for (text,) in rows:
        name, _, value = str(text).partition("=")
        if name in POSTGRES:
            answers[name] = value if value != POSTGRES[name] else answers[name]
    return answers


def read_restate(log: str) -> dict[str, str]:
    """Return the last configuration that the server has printed into its log, as far as asked.

    Args:
        log: what the server has written; it prints its configuration on SIGUSR1.
    """
    found: dict[str, str] = {}
    table = ""
    for line in log.splitlines():
        if heading := re.fullmatch(r"\[([a-z.-]+)\]", line.strip()):
            table = heading[1]
        elif setting := re.fullmatch(r'([a-z0-9-]+) = "?([^"]*)"?', line.strip()):
            found[f"{table} {setting[1]}"] = setting[2]
    return {name: found[name] for name in RESTATE if name in found}


def refuse_unless_durable(system: str, answers: dict[str, str], wanted: dict[str, str]) -> None:
    """Refuse to measure a system that may forget what it has acknowledged.

    Raises:
        NotDurable: an answer is missing or is another one.
    """
    wrong = [
        f"{name}: got {answers.get(name, 'no answer')}, expected {value}"
        for name, value in wanted.items()
        if answers.get(name) != value
    ]
    if wrong:
        raise NotDurable(f"{system} is not durable: {'; '.join(wrong)}")
