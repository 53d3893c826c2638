"""Whether a Postgres server takes a login, asked once and without a pool."""

from __future__ import annotations

from typing import Final

import psycopg

# What the URL of a server that only its own machine reaches contains.
EMBEDDED_HOSTS: Final = ("127.0.0.1", "localhost", "%2F", "host=/")


def why_unreachable(url: str, *, timeout_s: float) -> str | None:
    """Return why a server does not take a login, in one line without secrets; None if it does.

    Args:
        url: `postgresql://…`, of the login.
        timeout_s: seconds for the connection, 2 or more.
    """
    try:
        psycopg.connect(url, connect_timeout=round(timeout_s)).close()
    except psycopg.Error as error:
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    return None
