"""Write an agent in ten lines: declare capabilities with a decorator, then `run`.

Reference: features.md (Agent interface); docs/agents.md shows it used.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from callboard.errors import CallboardError
from callboard.kit import serving
from callboard.kit.answering import AnsweringAgent
from callboard.kit.context import Later
from callboard.kit.version_publishing import VersionDiffers

if TYPE_CHECKING:
    import httpx

    from callboard.replies import NodeResultTaken


class Agent(AnsweringAgent):
    """An agent that serves its capabilities over HTTP; see `AnsweringAgent` for its arguments."""

    _http: httpx.AsyncClient | None = None

    def run(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        endpoint: str | None = None,
        register: bool = True,
        until_eof: bool = False,
        heartbeat_period_s: float = serving.HEARTBEAT_PERIOD_S,
        drain_timeout_s: float = serving.DRAIN_TIMEOUT_S,
        deregister: bool = False,
        publish_versions: bool = False,
    ) -> None:
        """Serve until SIGINT or SIGTERM; prints one line once the agent is ready.

        When told to end it refuses new work so that it comes again, finishes what runs, says so to
        the coordinator and ends. A second signal ends it at once.

        Args:
            host: the address to listen on.
            port: the port to listen on, 0 for a free one.
            endpoint: the public address, when it is not the one listened on.
            register: register the card with the coordinator, found as `Client` finds it, and send
                it heartbeats.
            until_eof: end also when standard input closes, so that no agent outlives its starter.
            heartbeat_period_s: seconds between heartbeats; one speaks for 60 s.
            drain_timeout_s: how long work under way may take once the agent was told to end.
            deregister: take the agent out of service at the end; else it is only offline.
            publish_versions: publish the declared versions that are not published yet, once the
                agent is registered.

        Raises:
            SystemExit: the agent could not be set up; one sentence on standard error says why.
                Code 3: the coordinator could not be reached or refused the card or a version.
                Code 2: a key, an address or the card is wrong, or a version is published with
                other schemas. `serving.run` raises the error itself, which is the cause here.
        """
        life = serving.Life(
            host=host,
            port=port,
            endpoint=endpoint,
            register=register,
            until_eof=until_eof,
            heartbeat_period_s=heartbeat_period_s,
            drain_timeout_s=drain_timeout_s,
            deregister=deregister,
            publish_versions=publish_versions,
        )
        try:
            asyncio.run(serving.run(self, life))
        except (CallboardError, VersionDiffers, ValueError, OSError) as error:
            print(f"{self.service}: agent {self.did}: {error}", file=sys.stderr)
            raise SystemExit(3 if isinstance(error, CallboardError) else 2) from error

    async def deliver(
        self,
        later: Later,
        result: dict[str, Any] | None = None,
        *,
        error: str | None = None,
        code: str | None = None,
        metrics: dict[str, Any] | None = None,
        url: str | None = None,
    ) -> NodeResultTaken:
        """Hand the result of a dispatch in that was answered with `later`, or why there is none.

        Safe to repeat: the first result counts.

        Args:
            result: the result object.
            error: what went wrong; the coordinator may try again.
            code: a short name for the error.
            metrics: for example `tokens_used`.
            url: the coordinator's address; default as `Client` finds it.

        Raises:
            CallboardError: ALREADY_SETTLED or ESCROW_RELEASED when it came too late.
        """
        # Here, because httpx costs half a second that an agent that answers at once need not spend.
        from callboard.client import AsyncClient

        signed: dict[str, Any] = {}
        if error is None:
            signed = self._signed(later.node_id, later.workflow_id, result or {})
        try:
            http = self._kept_http()
            async with AsyncClient(url, http=http, **self.credential(url)) as client:
                return await client.node_result(
                    later.workflow_id,
                    later.node_id,
                    later.result_id,
                    result=result,
                    error=error,
                    code=code,
                    metrics=metrics,
                    agent_did=self.did,
                    signature=signed.get("signature"),
                    public_key=signed.get("publicKey"),
                )
        finally:
            self.result_delivered(later)

    async def close(self) -> None:
        """Let go of the threads and of the connections to the coordinator."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()
        await super().close()

    def _kept_http(self) -> httpx.AsyncClient | None:
        """Return what deliveries share while the agent is served; None for one of their own.

        Connections belong to a loop: a blocking handler that delivers has one of its own, which
        ends with the delivery, and so has a process that serves nothing.
        """
        if self.serving_loop is not asyncio.get_running_loop():
            return None
        if self._http is None:
            import httpx

            from callboard.transport import tls_context

            self._http = httpx.AsyncClient(verify=tls_context(), trust_env=False)
        return self._http
