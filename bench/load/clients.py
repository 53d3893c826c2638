"""A light HTTP client of a deployment, for loads and their preparation."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import orjson
from yarl import URL

from ledger.embedded.server import DATABASE, SUPERUSER, EmbeddedPostgres
from serve_app.supervisor.deployment import run_folder_of

# What a payer may do by default, and pay in.
PAYER_RIGHTS = ("workflows:read", "workflows:write", "ledger:read", "ledger:deposit")
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Target:
    """A deployment under load: its URL, its folder, its administrator's key."""

    url: str
    home: Path
    admin_key: str

    @classmethod
    def at(cls, home: Path, url: str | None = None) -> Target:
        """Read the deployment's folder; `url` is another address of the same API.

        Raises:
            SystemExit: the address is not one of loopback.
        """
        given = url or (home / "url").read_text(encoding="utf-8").strip()
        host = URL(given).host or ""
        if host != "localhost" and not host.startswith("127."):
            raise SystemExit(f"got {given}, expected an address of loopback")
        return cls(given, home, (home / "admin.key").read_text(encoding="utf-8").strip())

    @property
    def database_url(self) -> str:
        """Return the URL of the deployment's own database, as its superuser."""
        server = EmbeddedPostgres(self.home, run_folder_of(self.home))
        return server.url_for(SUPERUSER, DATABASE)


def unique(prefix: str) -> str:
    """Return a unique name."""
    return prefix + uuid.uuid4().hex[:12]


class Api:
    """Sends requests with one key from one loopback address.

    Args:
        url: the API's URL.
        key: sent with every request; None: no key.
        address: the loopback address of the connections.
        timeout_s: timeout of a whole request.
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        address: str = "127.0.0.1",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.url = url
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["x-api-key"] = key
        self._address = address
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Api:
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=0, local_addr=(self._address, 0)),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def send(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, bytes]:
        """Send one request; return its status and body.

        Args:
            path: sent as it is, percent signs included.
            headers: with underscores for hyphens.

        Raises:
            aiohttp.ClientError, TimeoutError: there is no reply.
        """
        assert self._session is not None
        url = URL(self.url + path, encoded=True)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self._session.request(method, url, data=body, headers=named) as response:
            return response.status, await response.read()

    async def must(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Send one request that must succeed; return its JSON.

        Raises:
            SystemExit: it failed.
        """
        content = None if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
        status, reply = await self.send(method, path, content, **headers)
        if status not in (200, 201):
            raise SystemExit(f"{method} {path}: {status} {reply[:500].decode(errors='replace')}")
        return orjson.loads(reply)

    async def make_key(self, owner_did: str, **members: Any) -> str:
        """Create a key for a DID with an administrator's key; return it."""
        made = await self.must("POST", "/v1/keys", {"ownerDid": owner_did, **members})
        return str(made["key"])

    async def register_agent(
        self, capability: str, port: int, *, price_cents: int = 1, **card: Any
    ) -> str:
        """Register a loopback agent that offers one capability; return its DID."""
        did = unique("did:bench:agent-")
        body = {
            "did": did,
            "endpoint": f"http://127.0.0.1:{port}",
            "version": 1,
            "maxConcurrency": 512,
            "capabilities": [{"id": capability, "description": "", "price_cents": price_cents}],
            **card,
        }
        await self.must("POST", "/v1/agents/register", {"acard": body})
        return did

    async def publish_bulk(
        self, manifest: Mapping[str, Any], count: int, *, at_once: int = 1_000
    ) -> list[str]:
        """Publish a workflow `count` times by bulk requests; return the workflows' ids."""
        ids: list[str] = []
        while len(ids) < count:
            size = min(at_once, count - len(ids))
            reply = await self.must(
                "POST", "/v1/workflows/publish/bulk", {"workflows": [manifest] * size}
            )
            for result in reply["results"]:
                if "workflowId" not in result:
                    raise SystemExit(f"bulk publish after {len(ids)} workflows: {result}")
                ids.append(result["workflowId"])
        return ids

    async def wait_ended(self, workflow_id: str) -> None:
        """Return when a workflow has ended.

        Raises:
            SystemExit: it has not succeeded.
        """
        status = "running"
        while status in ("pending", "running"):
            record = await self.must("GET", f"/v1/workflows/{workflow_id}", prefer="wait=60")
            status = record["status"]
        if status != "success":
            raise SystemExit(f"{workflow_id}: got {record}, expected success")

    async def wait_all_ended(self, payer_did: str = "") -> None:
        """Return when no workflow of the payer (without one: of anybody) is unfinished.

        Raises:
            SystemExit: one that was unfinished has not succeeded.
        """
        payer = f"&payerDid={payer_did}" if payer_did else ""
        for status in ("pending", "running"):
            path = f"/v1/workflows?status={status}&limit=1{payer}"
            while found := (await self.must("GET", path))["workflows"]:
                await self.wait_ended(found[0]["id"])


def chain(capability: str, length: int, **settings: Any) -> dict[str, Any]:
    """Return the manifest of a chain of nodes, each with the input of the one before it.

    Args:
        settings: the manifest's, and `timeoutMs` of every node.
    """
    timeout_ms = settings.pop("timeoutMs", None)
    nodes: dict[str, Any] = {}
    for number in range(length):
        nodes[f"n{number}"] = node = {"capabilityId": capability, "payload": {"n": number}}
        if timeout_ms is not None:
            node["timeoutMs"] = timeout_ms
        if number:
            node["dependsOn"] = [f"n{number - 1}"]
    manifest: dict[str, Any] = {"intent": "bench", "nodes": nodes}
    if settings:
        manifest["settings"] = settings
    return manifest
