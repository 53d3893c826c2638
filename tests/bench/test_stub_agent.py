"""The stub agent: what is asked for later is replied to later, and holds up nothing else."""

from __future__ import annotations

import asyncio

from bench.load.stub_agent import ANSWER, Tally, serve_stub


async def test_a_slow_path_is_replied_to_later_and_delays_no_other_reply() -> None:
    tally = Tally()
    server, port = await serve_stub(ANSWER, tally)
    readers = []
    for path in ("/after/600000/run", "/run", "/after/1/run"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"POST {path} HTTP/1.1\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        readers.append((reader, writer))
    waiting = asyncio.ensure_future(readers[0][0].readexactly(1))
    async with asyncio.timeout(60):
        for reader, _ in readers[1:]:
            assert await reader.readexactly(len(ANSWER)) == ANSWER
        while tally.received < 3:
            await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    for _, writer in readers:
        writer.close()
    server.close()
