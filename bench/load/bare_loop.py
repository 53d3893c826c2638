"""The upper bound: the same calls by a bare asyncio loop with aiohttp, without storage.

Run as `python -m bench.load.bare_loop WORKFLOWS SHAPE CONCURRENCY PORT…`; prints workflows, seconds
and CPU seconds as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import aiohttp
import orjson
import uvloop


async def _call(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> object:
    async with session.post(
        url, data=orjson.dumps(body), headers={"Content-Type": "application/json"}
    ) as response:
        return orjson.loads(await response.read())


async def _workflow(session: aiohttp.ClientSession, urls: list[str], shape: str) -> None:
    body: dict[str, object] = {"eventId": "x", "capabilityId": "cap.bench.v1", "inputs": {"n": 1}}
    if shape == "chain3":
        for index in range(3):
            await _call(session, urls[index % len(urls)], body)
        return
    await asyncio.gather(*(_call(session, urls[i % len(urls)], body) for i in range(9)))
    await _call(session, urls[0], body)


async def main(workflows: int, shape: str, concurrency: int, ports: list[str]) -> None:
    """Run `workflows` workflows with that many at once."""
    urls = [f"http://127.0.0.1:{port}/callboard/node" for port in ports]
    gate = asyncio.Semaphore(concurrency)
    connector = aiohttp.TCPConnector(limit=512)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one() -> None:
            async with gate:
                await _workflow(session, urls, shape)

        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(one() for _ in range(workflows)))
        print(
            json.dumps(
                {
                    "workflows": workflows,
                    "seconds": time.perf_counter() - wall,
                    "cpu": time.process_time() - cpu,
                }
            )
        )


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
