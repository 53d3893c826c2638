"""Calls of the stub agents from a peer's step: one keep-alive client per process."""

from __future__ import annotations

import json
import os
from itertools import count

import aiohttp

from bench.peers.graphs import node_body
from bench.peers.services.variables import PORTS_VARIABLE


class Agents:
    """The stub agents, called in turn. Made within the loop that calls them."""

    def __init__(self) -> None:
        ports = os.environ[PORTS_VARIABLE].split(",")
        self._urls = [f"http://127.0.0.1:{port}/callboard/node" for port in ports]
        self._turn = count()
        # No limit: as many calls at once as the engine asks for.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            headers={"Content-Type": "application/json"},
        )

    async def call(self, shape: str, node: str, texts: dict[str, str]) -> str:
        """Send a node to an agent; return its result's text."""
        url = self._urls[next(self._turn) % len(self._urls)]
        body = json.dumps(node_body(shape, node, texts)).encode()
        async with self._session.post(url, data=body) as response:
            reply = json.loads(await response.read())
        if reply["status"] != "success":
            raise RuntimeError(f"{node}: got {reply}, expected success")
        text: str = reply["result"]["text"]
        return text
