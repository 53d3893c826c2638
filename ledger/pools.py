"""Pools of connections that act as one role: how reads and the operational writes reach Postgres.

The one writer of the audited tables has a connection of its own (`ledger/writer/store.py`).
design.md section 3 (Two write paths).
"""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from ledger.schema import engine_url, session_options


def pool_of(
    url: str, role: str, name: str, *, size: int, timeout_s: float, **settings: str
) -> AsyncEngine:
    """Make a pool; its connections are opened when first needed.

    A statement is a transaction: no BEGIN and COMMIT round trips, no snapshot held open.

    Args:
        url: `postgresql://…` of a login that is a member of `role`.
        name: how the server lists the connections.
        size: connections, 1 or more.
        timeout_s: how long a caller waits for one.
        settings: of the server, for these sessions.
    """
    return create_async_engine(
        engine_url(url),
        pool_size=size,
        max_overflow=0,
        pool_timeout=timeout_s,
        isolation_level="AUTOCOMMIT",
        connect_args={
            "options": session_options(role, **settings),
            "application_name": name,
            "connect_timeout": 5,
        },
    )
