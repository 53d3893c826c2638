"""Fetching a key set: from a server, from a file, and not from a private address."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from federation.documents import KEY_SET_BYTES_MAX, DocumentUnavailable, fetch_jwks


def fetch(url: str, *allow: str) -> bytes:
    return asyncio.run(fetch_jwks(url, allow))


async def _served(reply: bytes, *allow: str) -> bytes:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        return await fetch_jwks(f"http://127.0.0.1:{port}/jwks", allow)


def test_a_key_set_at_a_private_address_is_refused_unless_it_is_allowed() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    assert asyncio.run(_served(reply, "127.0.0.0/8")) == b"{}"
    with pytest.raises(DocumentUnavailable, match="DENIED"):
        asyncio.run(_served(reply))
    for host in ("10.0.0.1", "169.254.169.254", "[::ffff:10.0.0.1]", "192.168.1.1"):
        with pytest.raises(DocumentUnavailable, match="DENIED"):
            fetch(f"https://{host}/jwks")


def test_another_status_and_a_redirect_are_no_key_set() -> None:
    for status in (b"404 Not Found", b"302 Found\r\nLocation: http://127.0.0.1/"):
        reply = b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n"
        with pytest.raises(DocumentUnavailable, match="status"):
            asyncio.run(_served(reply, "127.0.0.0/8"))


def test_a_key_set_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a key set"
    file.write_bytes(b'{"keys":[]}')
    assert fetch(file.as_uri()) == b'{"keys":[]}'
    file.write_bytes(b"x" * (KEY_SET_BYTES_MAX + 1))
    with pytest.raises(DocumentUnavailable, match="more than"):
        fetch(file.as_uri())
    with pytest.raises(DocumentUnavailable, match="FileNotFoundError"):
        fetch((tmp_path / "none").as_uri())
