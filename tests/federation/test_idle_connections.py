"""Idle connections: the last used first, and bounded in all and by server."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from federation.http_connection import IDLE_MAX, IDLE_PER_SERVER_MAX, IdleConnections, Server


@dataclass(eq=False)
class Connection:
    """A connection of a server."""

    server: Server
    idle_since_s: float


def server(number: int) -> Server:
    return (f"host{number}", 80, False)


def test_the_connection_used_last_is_used_first() -> None:
    idle: IdleConnections[Connection] = IdleConnections()
    first, second = Connection(server(1), 1), Connection(server(1), 2)
    for connection in (first, second):
        assert idle.put(connection) is None
    assert idle.take(server(2)) is None
    assert idle.take(server(1)) is second
    idle.drop(first)
    idle.drop(first)
    assert idle.take(server(1)) is None
    assert len(idle) == 0


def test_many_servers_keep_no_more_than_the_bound_and_the_oldest_goes() -> None:
    idle: IdleConnections[Connection] = IdleConnections()
    made = [Connection(server(number), number) for number in range(IDLE_MAX + 1)]
    surplus = [idle.put(connection) for connection in made]
    assert surplus == [None] * IDLE_MAX + [made[0]]


def test_idle_connections_take_at_most_half_of_the_files_of_the_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_000, hard))
    try:
        idle: IdleConnections[Connection] = IdleConnections()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    made = [Connection(server(number), number) for number in range(501)]
    assert [idle.put(connection) for connection in made] == [None] * 500 + [made[0]]


def test_one_server_keeps_no_more_than_its_bound() -> None:
    idle: IdleConnections[Connection] = IdleConnections()
    other = Connection(server(2), 0)
    idle.put(other)
    made = [Connection(server(1), number) for number in range(IDLE_PER_SERVER_MAX + 1)]
    surplus = [idle.put(connection) for connection in made]
    assert surplus == [None] * IDLE_PER_SERVER_MAX + [made[0]]


def test_the_oldest_are_found_without_the_younger() -> None:
    idle: IdleConnections[Connection] = IdleConnections()
    made = [Connection(server(number % 2), number) for number in range(6)]
    for connection in made:
        idle.put(connection)
    assert idle.oldest(3) == made[:4]
