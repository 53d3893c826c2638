"""The blocking and the asynchronous client, which share one set of operations.

Theory of operation: `operations/` declares each operation once: its requests and its reply record.
`Client` and `AsyncClient` differ only in how `transport.py` sends the requests. Reference: http.md
(Endpoints).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx

from callboard import calls, event_streams, replies
from callboard.calls import Call, Steps, keyed
from callboard.location import DidKey
from callboard.operations.declaring import Operation, Stream, operation
from callboard.operations.service import MoneyOperations, ServiceOperations
from callboard.operations.work import AgentOperations, WorkOperations
from callboard.replies import Published, Workflow, successful
from callboard.transport import Asynchronous, Blocking, Connection, H
from core.records.api.shape import Json
from core.trust.did_key import key_of_did
from core.trust.identity.card_signature import signed_registration


def _ended(published: Published) -> Workflow | None:
    """Return the finished record if the reply to a publish contains it, else None.

    The reply contains the record if the publish had a `wait_s` and the workflow ended in this time.
    """
    is_record = "nodes" in published and published.status in replies.FINISHED
    return Workflow(published) if is_record else None


class WorkflowHandle(Published):
    """The reply to a publish, with methods to read, await and cancel the workflow."""

    def __init__(self, reply: Mapping[str, Any], client: Client) -> None:
        super().__init__(reply)
        self._client = client

    def record(self) -> Workflow:
        """Read the workflow's current record."""
        return self._client.workflow(self.workflow_id)

    def result(self, timeout_s: float | None = None) -> Workflow:
        """Wait until the workflow has succeeded, and return its record.

        Args:
            timeout_s: the longest wait in seconds; None waits without a limit.

        Raises:
            WorkflowFailed: the workflow ended without success.
            StillRunning: the workflow did not end within `timeout_s`.
        """
        record = _ended(self) or self._client.wait(self.workflow_id, timeout_s=timeout_s)
        return successful(record)

    def cancel(self, *, reason: str = "user_request", details: str = "") -> replies.Cancelled:
        """Cancel the workflow; the rest of its escrow returns to the payer."""
        return self._client.cancel(self.workflow_id, reason=reason, details=details)


class AsyncWorkflowHandle(Published):
    """`WorkflowHandle` for asyncio programs."""

    def __init__(self, reply: Mapping[str, Any], client: AsyncClient) -> None:
        super().__init__(reply)
        self._client = client

    async def record(self) -> Workflow:
        """Read the workflow's current record."""
        return await self._client.workflow(self.workflow_id)

    async def result(self, timeout_s: float | None = None) -> Workflow:
        """Wait until the workflow has succeeded, and return its record.

        The argument and the errors are those of `WorkflowHandle.result`.
        """
        record = _ended(self) or await self._client.wait(self.workflow_id, timeout_s=timeout_s)
        return successful(record)

    async def cancel(self, *, reason: str = "user_request", details: str = "") -> replies.Cancelled:
        """Cancel the workflow; the rest of its escrow returns to the payer."""
        return await self._client.cancel(self.workflow_id, reason=reason, details=details)


class _Operations(
    Connection[H], WorkOperations, AgentOperations, MoneyOperations, ServiceOperations
):
    """All operations that both clients offer, except `publish`.

    `publish` is declared in each client, because its record is a handle of that client.
    """

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

        The card is signed if `private_key` is given, or if this client signs its requests with the
        agent's own `did:key`.

        Args:
            card: the agent card in its JSON form.
            signing_secret: the secret with which the coordinator signs dispatches to this agent.
            private_key: the agent's private key, in a form that `Client` accepts; it signs the
                card.
            owner_did: the agent's owner, which a signed card must name; default: the DID that
                signs this client's requests.

        Raises:
            ValueError: the private key is invalid, or a signed card has no owner.
        """
        did, key = str(card.get("did", "")), self._did_key
        if private_key is not None:
            key = DidKey.read(private_key, did)
        elif key is not None and (key.did != did or key_of_did(did) is None):
            # The client's key cannot prove this agent's identity: it belongs to another DID, or the
            # agent's DID does not contain its public key (it is no `did:key`).
            key = None
        body: Json = {"acard": dict(card)}
        if key is not None:
            own = None if self._did_key is None else self._did_key.did
            owner = owner_did or own
            if owner is None:
                raise ValueError("a signed card names its owner: give owner_did")
            # The time also serves as the card's counter: a newer card has a higher counter.
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
        url: the coordinator's address; default: CALLBOARD_URL, else the address of the local
            deployment.
        api_key: the caller's API key; default: CALLBOARD_API_KEY, else the admin key of the local
            deployment. CALLBOARD_API_KEY is sent to any address; the admin key is sent only to its
            own deployment.
        did: the DID that signs the requests; default: the `did:key` of the private key.
        private_key: the Ed25519 key of that DID, instead of an API key: base64 of its 32 bytes,
            PEM, or the path of a file with one of these. Default: the file that CALLBOARD_DID_KEY
            names, with the DID in CALLBOARD_DID; CALLBOARD_API_KEY is then ignored.
        reason: why the caller uses an operator's right, for the audit log; at most 512 characters.
        home: the folder of a local deployment, instead of the default folder.
        timeout_s: the time limit of one request, in addition to the time that the request asks the
            service to wait.
        attempts_max: the most times that a request is sent if repeating it is safe, 1 to 5.
        on_wait: called before each wait for a rate limit, with the seconds of the wait. The logger
            `callboard` logs a warning in any case.
        proxy: the address of an HTTP proxy. Proxies from the environment are not used.
        http: an httpx client to send with; `proxy` is then ignored, and the caller closes the
            httpx client.

    Raises:
        Unavailable: no address is given and no local deployment runs.
        ValueError: the private key is invalid, or an API key is given as well.
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
