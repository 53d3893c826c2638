"""Connections that are kept for their server's next request, bounded in number.

The connection of a server that was used last is used first; the one that was used longest ago is
closed first. Knows no sockets. Decision limits-and-admission.
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

IDLE_MAX: Final = 1_024
# No server takes the places of all others.
IDLE_PER_SERVER_MAX: Final = 256

Server = tuple[str, int, bool]  # host, port, whether by TLS


class Idle(Protocol):
    """A connection to `server` that has been idle since `idle_since_s`, a loop's time."""

    server: Server
    idle_since_s: float


Connection = TypeVar("Connection", bound=Idle)


class IdleConnections(Generic[Connection]):
    """The idle connections of one client, by server and by age."""

    def __init__(self) -> None:
        # Ordered by use: a dict's first key is found fast enough among so few.
        self._by_server: dict[Server, dict[Connection, None]] = {}
        self._by_age: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._by_age)

    def put(self, connection: Connection) -> Connection | None:
        """Keep a connection as the one used last; return the one to close for it, if any."""
        same = self._by_server.get(connection.server)
        if same is None:
            same = self._by_server[connection.server] = {}
        same[connection] = self._by_age[connection] = None
        if len(same) > IDLE_PER_SERVER_MAX:
            return next(iter(same))
        return next(iter(self._by_age)) if len(self._by_age) > IDLE_MAX else None

    def take(self, server: Server) -> Connection | None:
        """Take out the connection to a server that was used last."""
        same = self._by_server.get(server)
        if same is None:
            return None
        connection, _ = same.popitem()
        del self._by_age[connection]
        if not same:
            del self._by_server[server]
        return connection

    def drop(self, connection: Connection) -> None:
        """Forget a connection, if it is here."""
        if connection not in self._by_age:
            return
        same = self._by_server[connection.server]
        del same[connection], self._by_age[connection]
        if not same:
            del self._by_server[connection.server]

    def oldest(self, before_s: float, most: int) -> list[Connection]:
        """Return connections that have been idle since then or before, the oldest first."""
        found: list[Connection] = []
        for connection in self._by_age:
            if connection.idle_since_s > before_s or len(found) == most:
                break
            found.append(connection)
        return found
