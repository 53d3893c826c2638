"""A Postgres server on a host of its own, from a copy of the programs that the embedded one uses.

Its logins are those that docs/operations.md (The database) asks for: the owner, who migrates, and
the service.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from ledger.embedded.server import DATABASE, OWNER, SERVICE, bin_folder
from scripts.cluster_demo.hosts import SHARED, UID, Host, Network

_FOLDER = "~/postgres"
_PACKAGE = bin_folder().parent.parent
_PROGRAMS = f"{SHARED}/{bin_folder().relative_to(_PACKAGE.parent)}"
_HBA = "local all all trust\nhost all all {network} scram-sha-256\n"


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: the host it is on, and the URLs of its two logins."""

    host: Host
    database_url: str
    owner_url: str

    def rows(self, query: str) -> list[str]:
        """Return the lines that a query of the owner gives, columns between bars."""
        statement = f"SET search_path = callboard; {query}"
        return self.host.run(_psql(statement, DATABASE)).splitlines()

    def stop(self) -> None:
        """End the server at once, as its host's end does."""
        self.host.run(f"{_PROGRAMS}/pg_ctl -D {_FOLDER} -w -m immediate stop")

    def start(self) -> None:
        """Start the server; return when it answers."""
        self.host.run(_start_command(self.host))


def share_programs(shared: Path) -> None:
    """Copy Postgres's programs and libraries to where every user of every host may read them."""
    for folder in (_PACKAGE, _PACKAGE.with_name(f"{_PACKAGE.name}.libs")):
        shutil.copytree(folder, shared / folder.name, symlinks=True)


def start_postgres(network: Network, name: str = "postgres") -> Server:
    """Make a host with a Postgres server that the network reaches, and return the server."""
    host = network.add_host(name)
    passwords = {login: secrets.token_hex(16) for login in (OWNER, SERVICE)}
    hba = _HBA.format(network=host.address.rpartition(".")[0] + ".0/24")
    host.run(f"{_PROGRAMS}/initdb -D {_FOLDER} -U postgres -A trust -E UTF8 --locale=C.UTF-8")
    (host.home / "postgres" / "pg_hba.conf").write_text(hba)
    os.chown(host.home / "postgres" / "pg_hba.conf", UID, UID)
    host.run(_start_command(host))
    for statement in (
        f"CREATE ROLE {OWNER} LOGIN CREATEROLE PASSWORD '{passwords[OWNER]}'",
        f"CREATE ROLE {SERVICE} LOGIN PASSWORD '{passwords[SERVICE]}'",
        f"CREATE DATABASE {DATABASE} OWNER {OWNER}",
    ):
        host.run(_psql(statement, "postgres"))
    urls = [f"postgresql://{n}:{passwords[n]}@{host.address}/{DATABASE}" for n in (SERVICE, OWNER)]
    return Server(host, *urls)


def _start_command(host: Host) -> str:
    options = f"-c listen_addresses={host.address} -c unix_socket_directories=/tmp"
    options += " -c max_connections=300 -c shared_buffers=256MB"
    log = f"-l ~/postgres.log -o {shlex.quote(options)}"
    return f"{_PROGRAMS}/pg_ctl -D {_FOLDER} -w {log} start"


def _psql(statement: str, database: str) -> str:
    command = [f"{_PROGRAMS}/psql", "-h", "/tmp", "-U", "postgres", "-d", database]
    return shlex.join([*command, "-v", "ON_ERROR_STOP=1", "-Atqc", statement])
