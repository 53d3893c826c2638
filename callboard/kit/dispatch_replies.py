"""The replies of an agent to dispatches and cancellations, and the decorator for its handlers.

Rules of this file: no sockets. `AnsweringAgent.answer` takes the bytes of a dispatch and its
signature, and returns the HTTP status and the bytes of the reply. `serving.py` does the HTTP.
Reference: features.md (Agent interface, Dispatch signatures), http.md (Errors).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from callboard.kit.context import Context, Later, context_of
from callboard.kit.handler_signature import BadInput, Signature, as_json, defect_of
from core.records.agent import AgentCard, Capability, CardMetadata
from core.records.bounds import DID_PATTERN, is_did
from core.records.dispatch import CancelNotice, DispatchReply, DispatchRequest
from core.records.model_problems import PATTERN_WORDS
from core.trust.addressing import addressing_problem
from core.trust.signing import is_signature_valid
from core.wording import kind_of, quoted, value_text

if TYPE_CHECKING:
    from callboard.kit.result_signing import ResultSigner

DEFAULT_CONCURRENCY = 32
# The `Retry-After` of a draining agent. After this time, the coordinator can use another agent, or
# the process that replaces this process.
DRAINING_RETRY_S = 1
REMEMBERED_REPLIES_MAX = 1024
REMEMBERED_BYTES_MAX = 32 * 1024 * 1024

_log = logging.getLogger("callboard.kit.agent")
_H = TypeVar("_H", bound=Callable[..., Any])
_R = TypeVar("_R", bound=BaseModel)


class AgentError(Exception):
    """Raised by a handler to set the error in the reply to the coordinator.

    Args:
        message: what went wrong, for the payer.
        code: a short name for the error, or None.
        final: whether a retry with the same inputs would fail again. If True, the reply has status
            400, after which the coordinator does not retry. If False, it has status 500.
    """

    def __init__(self, message: str, code: str | None = None, final: bool = False) -> None:
        super().__init__(message, code, final)
        self.message = message
        self.code = code
        self.final = final

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply to send: the HTTP status, the bytes of the JSON body, and the `Retry-After`."""

    status: int
    body: bytes
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class AgentStatistics:
    """Counts of an agent's dispatches since its start; `in_flight`: the dispatches in work now."""

    answered: int
    failed: int
    repeated: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class _Served:
    """A capability and the handler that serves it."""

    capability: Capability
    call: Callable[..., Any]
    signature: Signature
    is_async: bool
    changelog: str

    def arguments(self, request: DispatchRequest, context: Context) -> dict[str, Any]:
        """Return the handler's arguments for a request; see `Signature.arguments`."""
        whole: dict[str, Any] = {
            "inputs": request.inputs,
            "parents": {name: {"result": p.result} for name, p in request.parents.items()},
        }
        if self.signature.wants_later:
            whole["later"] = _later_of(request)
        try:
            return self.signature.arguments(request.inputs, whole, context)
        except BadInput as error:
            code = "MISSING_INPUT" if error.defect is None else "INVALID_INPUT"
            raise AgentError(str(error), code, final=True) from error


class AnsweringAgent:
    """An agent: its identity, its capabilities and its replies to dispatches.

    Args:
        did: the agent's identifier, `did:<network>:<id>`.
        name: the agent's display name.
        author: the author of the agent.
        model: the language model that the agent uses, if any.
        service: the service name in paths and headers.
        signing_secret: the secret that verifies the signature of every dispatch; None skips the
            check.
        private_key: the Ed25519 key that signs results: base64 of its 32 bytes, PEM, or the path of
            a file with one of these. The agent card contains its public key. If the client finds no
            other credential, the key also signs the agent's requests, and the card if the agent's
            DID is a `did:key`.
        owner_did: the agent's owner. If it is given, the card is also signed when another
            credential registers the agent.
        max_concurrency: the most dispatches that the coordinator may have open at once.
        accepted_verifiers: the verifiers whose verdict the agent accepts if a payer chooses one:
            "trusted", "any" or a list of DIDs; None: "trusted".
        now_s: returns the current Unix time in seconds, to refuse dispatches from too far in the
            past or the future.
    """

    def __init__(
        self,
        did: str,
        name: str | None = None,
        *,
        author: str | None = None,
        model: str | None = None,
        service: str = "callboard",
        signing_secret: str | None = None,
        private_key: str | None = None,
        owner_did: str | None = None,
        max_concurrency: int = DEFAULT_CONCURRENCY,
        accepted_verifiers: str | list[str] | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        if not is_did(did):
            raise ValueError(f"did: got {value_text(did)}, expected {PATTERN_WORDS[DID_PATTERN]}")
        self.did = did
        self.service = service
        self.signing_secret = signing_secret
        metadata = {"name": name, "author": author, "model": model}
        self._metadata = _record(CardMetadata, f"agent {did}", metadata)
        self.max_concurrency = max_concurrency
        self._accepted_verifiers = accepted_verifiers
        self.signer = None if private_key is None else _signer(private_key)
        self.owner_did = owner_did
        self._now_s = now_s
        self._served: dict[str, _Served] = {}
        self._tasks: OrderedDict[str, asyncio.Task[Answer]] = OrderedDict()
        # The first event id of each piece of work; the task in `_tasks` has this id. The keys of
        # this mapping are the key of the work, and the event ids of later attempts at the work.
        self._first_events: OrderedDict[tuple[str | None, ...], str] = OrderedDict()
        self._remembered_bytes = 0
        self._answered = self._failed = self._repeated = 0
        # Result ids of the dispatches that were answered with `later` and await their result.
        self._awaited: set[str] = set()
        self.is_draining = False
        # The event loop that serves the agent; None while the agent is not served.
        self.serving_loop: asyncio.AbstractEventLoop | None = None
        self._settled = asyncio.Event()
        # Blocking handlers run in threads, so that they do not delay /health. Threads start on
        # demand.
        self._threads = ThreadPoolExecutor(max_concurrency, thread_name_prefix="handler")

    def __repr__(self) -> str:
        served = ", ".join(self._served)
        return f"{type(self).__name__}({self.did!r}, serves [{served}], {self.statistics()})"

    def statistics(self) -> AgentStatistics:
        """Return the counts. A dispatch answered with `later` stays in flight until its result is
        submitted."""
        in_flight = sum(not task.done() for task in self._tasks.values()) + len(self._awaited)
        return AgentStatistics(self._answered, self._failed, self._repeated, in_flight)

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The ids of the agent's capabilities, in the order of their declaration."""
        return tuple(self._served)

    @property
    def versions(self) -> list[tuple[Capability, str]]:
        """The capabilities that declare a version, each with its changelog."""
        return [
            (served.capability, served.changelog)
            for served in self._served.values()
            if "version" in (served.capability.model_extra or {})
        ]

    def capability(
        self,
        capability_id: str,
        *,
        description: str | None = None,
        price_cents: int | None = None,
        input_schema: dict[str, Any] | None = None,
        output_schema: dict[str, Any] | None = None,
        version: str | None = None,
        changelog: str = "",
    ) -> Callable[[_H], _H]:
        """Return a decorator that declares the handler of a capability; the handler may be `async`.

        Each parameter of the handler receives the input of the same name. Some parameters are
        special: `inputs` receives all inputs, and `parents` receives all parents' results. A
        parameter with the type `Context` receives the dispatch's context. The handler returns the
        result object (a dict, dataclass or pydantic model). To submit the result later with
        `Agent.deliver`, the handler declares a parameter `later` and returns its value.

        Args:
            capability_id: for example `cap.text.keywords.v1`.
            description: default: the first line of the handler's docstring.
            price_cents: the fixed price per node, in cents.
            input_schema: JSON Schema of the inputs; default: derived from the type hints.
            output_schema: JSON Schema of the result; default: derived from the type hints.
            version: the version of the capability, for example `1.4.0`. Nodes can request it after
                it is published; `run(publish_versions=True)` publishes it.
            changelog: what has changed in this version.

        Raises:
            ValueError: the agent already serves this capability, or the id or price is invalid.
        """

        def declare(call: _H) -> _H:
            if capability_id in self._served:
                raise ValueError(f"{self.did} already serves {capability_id}")
            summary = (inspect.getdoc(call) or "").partition("\n")[0]
            signature = Signature(call)
            self._served[capability_id] = _Served(
                _record(
                    Capability,
                    f"capability {quoted(str(capability_id))}",
                    {
                        "id": capability_id,
                        "description": description if description is not None else summary,
                        "price_cents": price_cents,
                        "inputSchema": input_schema or signature.input_schema,
                        "outputSchema": output_schema or signature.output_schema,
                        **({} if version is None else {"version": version}),
                    },
                ),
                call,
                signature,
                inspect.iscoroutinefunction(call),
                changelog,
            )
            return call

        return declare

    def card(self, endpoint: str) -> AgentCard:
        """Return the agent card.

        Args:
            endpoint: the address at which the agent is reachable.

        Raises:
            ValueError: the address is invalid, or the agent has no capability.
        """
        members = {
            "did": self.did,
            "endpoint": endpoint,
            "version": 1,
            "capabilities": [served.capability for served in self._served.values()],
            "metadata": self._metadata,
            "public_key": None if self.signer is None else self.signer.public_key,
            "max_concurrency": self.max_concurrency,
            "accepted_verifiers": self._accepted_verifiers,
        }
        return _record(AgentCard, "card", members)

    async def answer(
        self,
        body: bytes,
        signature: str | None,
        traceparent: str | None = None,
        idempotency_key: str | None = None,
    ) -> Answer:
        """Answer a dispatch.

        1. Verify the signature over the bytes of the body, if a secret is set.
        2. Parse the request.
        3. Refuse a request for another agent, and a request whose timestamp differs from now by
           more than 300 s.
        4. Answer a repeated `eventId` with the reply to the first request, and wait for that reply
           if necessary. Do the same for another attempt at the same work, unless the first attempt
           failed or was answered with `later`.
        5. While draining, refuse new work with 503, so that the coordinator dispatches it again.
        6. Run the capability's handler.

        Args:
            body: the request body as received.
            signature: the value of the signature header, None if it is absent.
            traceparent, idempotency_key: the values of these headers, None if they are absent.
        """
        if not self._is_signed(body, signature):
            return _failure(_event_id(body), 401, "Invalid signature")
        try:
            request = DispatchRequest.model_validate_json(body)
        except ValidationError as error:
            return _failure(_event_id(body), 400, f"not a dispatch request: {defect_of(error)}")
        now_ms = int(self._now_s() * 1_000)
        problem = addressing_problem(self.did, request.agent_did, request.timestamp, now_ms=now_ms)
        if problem is not None:
            return _failure(request.event_id, 401, "Invalid signature", problem)
        work = None
        if idempotency_key is not None:
            work = (idempotency_key, request.workflow_id, request.node_id)
        task = self._find_task(request.event_id, work)
        if task is None and self.is_draining:
            refusal = _failure(request.event_id, 503, "the agent is shutting down", "DRAINING")
            return replace(refusal, retry_after_s=DRAINING_RETRY_S)
        if task is None:
            context = context_of(request, traceparent, idempotency_key)
            task = asyncio.get_running_loop().create_task(self._serve(request, context))
            self._tasks[request.event_id] = task
            if work is not None:
                self._note_first(work, request.event_id)
            task.add_done_callback(self._remember)
        else:
            self._repeated += 1
        if not task.done():
            await asyncio.wait([task])
        if task.cancelled():
            return _failure(request.event_id, 500, "cancelled by the coordinator", "CANCELLED")
        answer = task.result()
        if self._tasks.get(request.event_id) is task:
            return answer
        own = {**json.loads(answer.body), "eventId": request.event_id}
        return replace(answer, body=_encode(own))

    def _find_task(
        self, event_id: str, work: tuple[str | None, ...] | None
    ) -> asyncio.Task[Answer] | None:
        """Return the task whose reply also answers this event; None if a new task must be started.

        This is the task of the same event, or of another attempt at the same work. A cancelled task
        is never used again. Another attempt's task is not used in two cases. It has failed: a new
        attempt may succeed. It was answered with `later`: its result counts only for its attempt.
        """
        task = self._tasks.get(self._first_events.get((event_id,), event_id))
        if task is None and work is not None:
            first = self._first_events.get(work, "")
            task = self._tasks.get(first)
            if task is not None and task.done() and not task.cancelled():
                task = task if task.result().status == 200 else None
            if task is not None:
                self._note_first((event_id,), first)
        return None if task is None or task.cancelled() else task

    def _note_first(self, key: tuple[str | None, ...], event_id: str) -> None:
        self._first_events[key] = event_id
        if len(self._first_events) > REMEMBERED_REPLIES_MAX:
            self._first_events.popitem(last=False)

    async def cancel(self, body: bytes, signature: str | None) -> Answer:
        """Answer a cancellation notice, and stop the handler of the event if it is asynchronous.

        A blocking handler cannot be stopped; the coordinator discards its result.
        """
        if not self._is_signed(body, signature):
            return _failure(_event_id(body), 401, "Invalid signature")
        try:
            notice = CancelNotice.model_validate_json(body)
        except ValidationError as error:
            return _failure(_event_id(body), 400, f"not a cancellation: {defect_of(error)}")
        first = self._first_events.get((notice.event_id,), notice.event_id)
        task = self._tasks.get(first)
        stopped = task is not None and task.cancel()
        return Answer(200, _encode({"ok": True, "eventId": notice.event_id, "stopped": stopped}))

    def drain(self) -> None:
        """Refuse new work from now on; running work continues, and repeated events get replies."""
        self.is_draining = True

    async def drained(self, timeout_s: float) -> None:
        """Wait until nothing is in flight, at most `timeout_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.statistics().in_flight:
                    self._settled.clear()
                    await self._settled.wait()

    def result_delivered(self, later: Later) -> None:
        """Remove a dispatch from the work in flight: its result was submitted, or never will be."""
        self._awaited.discard(later.result_id)
        self._settled.set()

    async def close(self) -> None:
        """Shut the threads down without waiting for handlers that still run."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _is_signed(self, body: bytes, signature: str | None) -> bool:
        secret = self.signing_secret
        return secret is None or is_signature_valid(body, secret, signature)

    async def _serve(self, request: DispatchRequest, context: Context) -> Answer:
        served = self._served.get(request.capability_id)
        if served is None:
            return _failure(request.event_id, 404, f"unknown capability '{request.capability_id}'")
        began = time.perf_counter()
        try:
            result = as_json(await self._run(served, request, context))
            if isinstance(result, Later):
                self._awaited.add(result.result_id)
                return Answer(202, _encode({"ok": True, "eventId": request.event_id}))
            if not isinstance(result, dict):
                got = kind_of(result)
                raise TypeError(f"{request.capability_id} returned {got}, expected an object")
            latency_ms = round((time.perf_counter() - began) * 1000)
            reply = DispatchReply(
                event_id=request.event_id,
                status="success",
                result=result,
                metrics={**context.metrics, "latency_ms": latency_ms},
            )
            sent = reply.to_json()
            sent |= self._signed(context.node_id, context.workflow_id, sent["result"])
            answer = Answer(200, _encode(sent))
        # The edge of the process: an exception of a handler becomes the specification's 500.
        except Exception as error:
            self._failed += 1
            return self._thrown(request, error)
        self._answered += 1
        return answer

    def credential(self, url: str | None = None) -> dict[str, Any]:
        """Return the arguments for a `Client` that signs its requests with the agent's key.

        They are empty if the client finds another credential, or if the agent has no key.

        Args:
            url: the coordinator's address; default: see `Client`.
        """
        from callboard.location import locate

        found = locate(url, None)
        if self.signer is None or found.api_key is not None or found.did_key is not None:
            return {}
        return {"did": self.did, "private_key": self.signer.private_key}

    def _signed(
        self, node_id: str | None, workflow_id: str | None, result: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the members of a reply that sign its result.

        They are empty if the agent has no key or the dispatch names no workflow and node.
        """
        if self.signer is None or node_id is None or workflow_id is None:
            return {}
        signature = self.signer.signature(node_id, workflow_id, result)
        return {"signature": signature, "publicKey": self.signer.public_key}

    async def _run(self, served: _Served, request: DispatchRequest, context: Context) -> Any:
        arguments = served.arguments(request, context)
        if served.is_async:
            return await served.call(**arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: served.call(**arguments))

    def _thrown(self, request: DispatchRequest, error: Exception) -> Answer:
        code = getattr(error, "code", None)
        final = isinstance(error, AgentError) and error.final
        if not isinstance(error, AgentError):
            _log.error("%s failed", request.capability_id, exc_info=error)
        return _failure(
            request.event_id,
            400 if final else 500,
            _error_text(error),
            code if isinstance(code, str) else None,
        )

    def _remember(self, task: asyncio.Task[Answer]) -> None:
        self._settled.set()
        self._remembered_bytes += _size(task)
        while len(self._tasks) > REMEMBERED_REPLIES_MAX or (
            self._remembered_bytes > REMEMBERED_BYTES_MAX
        ):
            oldest = next((key for key, held in self._tasks.items() if held.done()), None)
            if oldest is None:
                return
            self._remembered_bytes -= _size(self._tasks.pop(oldest))


def _later_of(request: DispatchRequest) -> Later:
    ids = (request.workflow_id, request.node_id, request.result_id)
    workflow_id, node_id, result_id = ids
    if workflow_id is None or node_id is None or result_id is None:
        raise AgentError(
            "the dispatch has no resultId, so its result cannot be submitted", final=True
        )
    return Later(request.event_id, workflow_id, node_id, result_id)


def _signer(private_key: str) -> ResultSigner:
    # Imported here, so that agents without a key do not load the cryptography library.
    from callboard.kit.result_signing import ResultSigner

    return ResultSigner(private_key)


def _record(kind: type[_R], of: str, members: dict[str, Any]) -> _R:
    """Return the record with these members.

    Raises:
        ValueError: a member is invalid; the message names the first such member.
    """
    try:
        return kind.model_validate(members)
    except ValidationError as error:
        raise ValueError(f"{of}: {defect_of(error)}") from None


def _size(task: asyncio.Task[Answer]) -> int:
    return 0 if task.cancelled() else len(task.result().body)


def _failure(event_id: str, status: int, error: str, code: str | None = None) -> Answer:
    reply = DispatchReply(event_id=event_id, status="error", error=error, code=code)
    return Answer(status, _encode(reply.to_json()))


def _encode(reply: dict[str, Any]) -> bytes:
    return json.dumps(reply, ensure_ascii=False, separators=(",", ":")).encode()


def _event_id(body: bytes) -> str:
    """Return the event id in a body that cannot be parsed as a dispatch; empty if there is none."""
    try:
        event_id = json.loads(body)["eventId"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return event_id if isinstance(event_id, str) else ""


def _error_text(error: Exception) -> str:
    """Return the error text for the payer.

    It begins with the class of the exception, unless that is `AgentError`.
    """
    name, text = type(error).__name__, str(error)
    if isinstance(error, AgentError) and text:
        return text
    return f"{name}: {text}" if text else name
