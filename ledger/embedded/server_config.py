"""The configuration of the embedded Postgres: one file of settings, one of access rules.

This file only builds text. Measurements and reasons: money.md (Commands and keys).
"""

from __future__ import annotations

from pathlib import Path

INITDB_OPTIONS = (
    "--auth=scram-sha-256",
    "--encoding=UTF8",
    "--locale-provider=builtin",  # does not depend on the machine's locales
    "--locale=C.UTF-8",
    "--data-checksums",
    "--no-instructions",
)
# Logins are only possible over the socket and with a password. `all` does not include replication
# connections, which base backups use; only the superuser may make them.
ACCESS_RULES = """\
local all all scram-sha-256
local replication postgres scram-sha-256
"""


def server_settings(*, socket_folder: Path, shared_buffers_mib: int, max_connections: int) -> str:
    """Return the text of `postgresql.conf`.

    Args:
        socket_folder: the folder of the Unix socket; its path has at most 90 bytes.
        shared_buffers_mib: size of the server's cache, MiB.
        max_connections: maximum number of connections.
    """
    path = str(socket_folder)
    if len(path.encode()) > 90:
        raise ValueError(f"socket folder {path!r}: {len(path.encode())} bytes, at most 90")
    values: dict[str, str] = {
        "listen_addresses": "''",
        "unix_socket_directories": "'" + path.replace("'", "''") + "'",
        "unix_socket_permissions": "0777",  # the folder protects it: 0700
        "max_connections": str(max_connections),
        "shared_buffers": f"{shared_buffers_mib}MB",
        # Durability is the product: acknowledged commits are on disk.
        "fsync": "on",
        "synchronous_commit": "on",
        "wal_compression": "on",
        "max_wal_size": "2GB",
        "min_wal_size": "128MB",
        "checkpoint_timeout": "10min",
        # One writer with small set-based statements: planning time matters more than plan quality.
        "jit": "off",
        "random_page_cost": "1.1",
        "work_mem": "16MB",
        "max_parallel_workers_per_gather": "0",
        "autovacuum_naptime": "10s",  # removes dead versions of busy account rows early
        "autovacuum_vacuum_cost_limit": "1000",
        # A snapshot left open triples the cost of a batch (money.md, Commands and keys).
        "idle_in_transaction_session_timeout": "60s",
        # A client that connects and never authenticates occupies a connection for at most this
        # time.
        "authentication_timeout": "10s",
        "timezone": "'UTC'",
        "log_timezone": "'UTC'",
        "lc_messages": "'C'",
        "default_text_search_config": "'pg_catalog.simple'",
        "log_line_prefix": "'%m [%p] %u '",
        "log_checkpoints": "off",
        "log_lock_waits": "on",
        "client_connection_check_interval": "5s",
    }
    return "".join(f"{name} = {value}\n" for name, value in values.items())
