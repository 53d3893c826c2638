"""`Agent`, an agent program: declare its capabilities with a decorator, then call `run`.

Reference: features.md (Agent interface); docs/agents.md has examples.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from callboard.errors import CallboardError
from callboard.kit import serving
from callboard.kit.context import Later
from callboard.kit.dispatch_replies import AnsweringAgent
from callboard.kit.version_publishing import VersionDiffers

if TYPE_CHECKING:
    import httpx

    from callboard.replies import NodeResultTaken


class Agent(AnsweringAgent):
    """An agent that serves its capabilities over HTTP; see `AnsweringAgent` for the arguments."""

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
        """Serve until SIGINT or SIGTERM; print one line when the agent is ready.

        At the signal, the agent refuses new work, so that the coordinator dispatches the work
        again. The agent tells the coordinator that it is draining, waits for the running work, and
        ends. A second signal ends the wait.

        Args:
            host: the address to listen on.
            port: the port to listen on, 0 for a free one.
            endpoint: the public address, if it differs from the address to listen on.
            register: register the card with the coordinator and send heartbeats. The coordinator's
                address is found as for `Client`.
            until_eof: also end when standard input closes, so that the agent does not outlive the
                process that started it.
            heartbeat_period_s: seconds between heartbeats; the coordinator regards a heartbeat as
                current for 60 s.
            drain_timeout_s: the longest wait for running work, in seconds.
            deregister: deregister the agent at the end; False: its status becomes `stopped`.
            publish_versions: after the registration, publish the declared versions that are not
                published yet.

        Raises:
            SystemExit: the agent could not be set up; one sentence on standard error says why.
                Code 3: the coordinator could not be reached, or refused the card or a version.
                Code 2: a key, an address or the card is invalid, or a version is already published
                with other schemas. The original error is the `__cause__`.
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
        """Submit the result, or the error, of a dispatch that the handler answered with `later`.

        Safe to repeat: the first result counts.

        Args:
            later: the value that the handler returned.
            result: the result object.
            error: what went wrong; the coordinator may retry the node.
            code: a short name for the error.
            metrics: for example `tokens_used`.
            url: the coordinator's address; default: see `Client`.

        Raises:
            CallboardError: ALREADY_SETTLED or ESCROW_RELEASED if the result came too late.
        """
        # Imported here, because httpx takes half a second to load, and agents that never answer
        # with `later` do not need it.
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
        """Shut down the threads, and close the connections to the coordinator."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()
        await super().close()

    def _kept_http(self) -> httpx.AsyncClient | None:
        """Return the HTTP client that deliveries share, or None if a delivery needs its own.

        The connections of an HTTP client belong to one event loop, so only deliveries on the loop
        that serves the agent share an HTTP client. A delivery from a blocking handler, or from a
        process that does not serve the agent, runs on another loop.
        """
        if self.serving_loop is not asyncio.get_running_loop():
            return None
        if self._http is None:
            import httpx

            from callboard.transport import tls_context

            self._http = httpx.AsyncClient(verify=tls_context(), trust_env=False)
        return self._http
