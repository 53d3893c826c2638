"""The client, blocking and asynchronous, over one set of operations.

Theory of operation: `operations/` declares each operation once: what it sends and what comes back.
`Client` and `AsyncClient` differ only in how `transport.py` sends. Reference: http.md (Endpoints).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx

from callboard import calls, event_streams, replies
from callboard.calls import Call, Steps, keyed
from callboard.locating import DidKey
from callboard.operations.declaring import Operation, Stream, operation
from callboard.operations.service import MoneyOperations, ServiceOperations
from callboard.operations.work import AgentOperations, WorkOperations
from callboard.replies import Published, Workflow, successful
from callboard.transport import Asynchronous, Blocking, Connection, H
from core.records.api.shape import Json
from core.trust.did_key import key_of_did
from core.trust.identity.card_signature import signed_registration


def _ended(published: Published) -> Workflow | None:
    """Return the record that publishing waited for, None if it did not wait or not long enough."""
    is_record = "nodes" in published and published.status in replies.FINISHED
    return Workflow(published) if is_record else None


class WorkflowHandle(Published):
    """A published workflow: the reply to publishing it, and what can be done with it."""

    def __init__(self, reply: Mapping[str, Any], client: Client) -> None:
        super().__init__(reply)
        self._client = client

    def record(self) -> Workflow:
        """Read the workflow as it stands."""
        return self._client.workflow(self.workflow_id)

    def result(self, timeout_s: float | None = None) -> Workflow:
        """Return the record once the workflow has succeeded.

        Args:
            timeout_s: how long to wait, None for as long as it takes.

        Raises:
            WorkflowFailed: it has ended otherwise.
            StillRunning: it has not ended in that time.
        """
        record = _ended(self) or self._client.wait(self.workflow_id, timeout_s=timeout_s)
        return successful(record)

    def cancel(self, *, reason: str = "user_request", details: str = "") -> replies.Cancelled:
        """Cancel the workflow; what is left in its escrow returns."""
        return self._client.cancel(self.workflow_id, reason=reason, details=details)


class AsyncWorkflowHandle(Published):
    """`WorkflowHandle` for asyncio programs."""

    def __init__(self, reply: Mapping[str, Any], client: AsyncClient) -> None:
        super().__init__(reply)
        self._client = client

    async def record(self) -> Workflow:
        """Read the workflow as it stands."""
        return await self._client.workflow(self.workflow_id)

    async def result(self, timeout_s: float | None = None) -> Workflow:
        """Return the record once the workflow has succeeded; see `WorkflowHandle.result`."""
        record = _ended(self) or await self._client.wait(self.workflow_id, timeout_s=timeout_s)
        return successful(record)

    async def cancel(self, *, reason: str = "user_request", details: str = "") -> replies.Cancelled:
        """Cancel the workflow; what is left in its escrow returns."""
        return await self._client.cancel(self.workflow_id, reason=reason, details=details)


class _Operations(
    Connection[H], WorkOperations, AgentOperations, MoneyOperations, ServiceOperations
):
    """Every operation of the service that a client offers."""

    stream = Stream(event_streams.stream)
    events = Stream(event_streams.events)

    @operation(replies.Registered)
    def register_agent(
        self,
        card: Mapping[str, Any],
        *,
        signing_secret: str | None = None,
        private_key: str | Path | None = None,
        owner_did: str | None = None,
    ) -> Steps:
        """Register an agent card, or replace it. Reference: features.md (Registration).

        A client that signs by the agent's own `did:key` signs the card, too.

        Args:
            card: the agent card in its JSON form.
            signing_secret: the secret the coordinator signs dispatches to this agent with.
            private_key: the agent's, which signs the card: as of this client.
            owner_did: the agent's owner, whom a signed card names; default the DID that signs the
                requests.

        Raises:
            ValueError: the private key is none, or a signed card would name no owner.
        """
        did, key = str(card.get("did", "")), self._did_key
        if private_key is not None:
            key = DidKey.read(private_key, did)
        elif key is not None and (key.did != did or key_of_did(did) is None):
            key = None  # of another DID, or it shows nothing of this one
        body: Json = {"acard": dict(card)}
        if key is not None:
            own = None if self._did_key is None else self._did_key.did
            owner = owner_did or own
            if owner is None:
                raise ValueError("a signed card names its owner: give owner_did")
            # The time is the card's counter: a later card counts more.
            now_ms = time.time_ns() // 1_000_000
            body = signed_registration(
                card,
                private_key=key.seed,
                audience=self.url,
                owner_did=owner,
                issued_ms=now_ms,
                counter=now_ms,
                signing_secret=signing_secret,
            )
        elif signing_secret is not None:
            body["signingSecret"] = signing_secret
        path = "/v1/agents/register"
        return calls.single(Call("POST", path, body=body, headers=keyed(None)))


class Client(Blocking, _Operations[httpx.Client]):
    """A blocking client.

    Args:
        url: the coordinator's address; default CALLBOARD_URL, else the local deployment's.
        api_key: the caller's key; default CALLBOARD_API_KEY, which is sent to whatever address is
            used, else the local deployment's, which is sent to that deployment only.
        did: the DID that signs the requests; default the `did:key` of the private key.
        private_key: its Ed25519 key, in the place of an API key: base64 of the 32 bytes, or the
            path of a file with that or with PEM; default the file that CALLBOARD_DID_KEY names, of
            the DID CALLBOARD_DID, which comes before CALLBOARD_API_KEY.
        reason: why an operator's right is used, for the audit; at most 512 characters.
        home: the folder of a local deployment, instead of the default one.
        timeout_s: how long one request may take beside what it asks the service to wait.
        attempts_max: how often a request that is safe to repeat is sent at most, 1 to 5.
        on_wait: called with the seconds of each wait for a rate limit, before the wait; the wait is
            logged in any case, as a warning of the logger `callboard`.
        proxy: the address of an HTTP proxy; the environment's is not used.
        http: an httpx client to send with, which stays the caller's to close; `proxy` is its own.

    Raises:
        Unavailable: no address is given and no deployment runs here.
        ValueError: the private key is none, or an API key is given as well.
    """

    publish = Operation(calls.publish, WorkflowHandle, is_handle=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(Asynchronous, _Operations[httpx.AsyncClient]):
    """A client for asyncio programs; the arguments are those of `Client`."""

    publish = Operation(calls.publish, AsyncWorkflowHandle, is_handle=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
