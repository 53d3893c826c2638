"""Every request a client can make, as data: what is sent, and whether it may be sent twice.

Rules of this file: no I/O and no choice of HTTP library. An operation is a generator that yields
`Call`s, is given each `Reply` and returns what the caller wanted; `client.py` drives it, once for
the blocking and once for the asynchronous client. Reference: http.md (Endpoints).
"""

from __future__ import annotations

import inspect
import random
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec
from urllib.parse import quote

from callboard.errors import (
    UNREACHABLE,
    CallboardError,
    OutcomeUnknown,
    Unavailable,
    error_class,
)
from callboard.locating import DidKey
from callboard.replies import FINISHED
from core.records.api.shape import Json, json_name
from core.trust.identity.card_signature import signed_registration

P = ParamSpec("P")

ATTEMPTS_MAX = 5
RETRY_DELAY_S_MAX = 30.0
PREFER_WAIT_S_MAX = 60
AUDIT_PAGE = 1000
_FIRST_RETRY_DELAY_S = 0.2
# Of callers that were refused together, each comes back up to so much later than it was told.
_JITTER_SHARE = 0.5
_RETRIED_STATUSES = frozenset({429, 502, 503, 504})
# Refused until the quota's day is over: no pause of a retry is long enough.
_LASTING_CODES = frozenset({"QUOTA_EXCEEDED"})
# A service that answers before the wait it was asked for is asked again no faster than this.
_POLL_PAUSE_S = 0.25


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request.

    `repeatable` says that sending it twice does what sending it once does: reads, and writes that
    carry an idempotency key or replace a record. `done`: the answer when a repeat, after an attempt
    that may have worked, is told that there is nothing of it left to do. `wait_s` is how long the
    service may hold its answer; `pause_s` is how long to wait before sending, `is_limited` that the
    pause is for a rate limit. `any_status` takes a reply with an error status for an answer.
    """

    method: str
    path: str
    query: Mapping[str, str | float] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    wait_s: float = 0.0
    pause_s: float = 0.0
    is_limited: bool = False
    any_status: bool = False
    done: Json | None = None

    @property
    def is_write(self) -> bool:
        """Whether it changes something."""
        return self.method != "GET"


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer with its JSON body; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class NoReply:
    """The connection failed; `sent` says that the request may have reached the service."""

    reason: str
    sent: bool


Steps = Generator[Call, Reply, Json]
Attempts = Generator[Call, Reply | NoReply, Json]


def persistently(
    steps: Steps,
    *,
    attempts_max: int = ATTEMPTS_MAX,
    jitter: Callable[[], float] = random.random,
) -> Attempts:
    """Run an operation so that every call of it is retried, bounded, where that is safe.

    Args:
        steps: the operation.
        attempts_max: how often a call is sent at most.
        jitter: draws from 0 to 1 how much longer each pause is.

    Raises:
        CallboardError: the service refused, or could not be reached.
    """
    try:
        call = next(steps)
        while True:
            call = steps.send((yield from _answered(call, attempts_max, jitter)))
    except StopIteration as end:
        result: Json = end.value
        return result


def _answered(
    call: Call, attempts_max: int, jitter: Callable[[], float]
) -> Generator[Call, Reply | NoReply, Reply]:
    attempt, is_open, may_be_done = 1, False, False
    while True:
        outcome = yield call
        # Once unanswered, a write may have happened, whatever comes of the later attempts.
        is_open = is_open or (call.is_write and isinstance(outcome, NoReply) and outcome.sent)
        if may_be_done and call.done is not None and _is_nothing_left(outcome):
            return Reply(200, {}, dict(call.done))
        may_be_done = may_be_done or _may_have_worked(outcome)
        delay_s = retry_delay_s(call, attempt, outcome, jitter=jitter())
        if delay_s is None or attempt >= attempts_max:
            break
        attempt += 1
        is_limited = isinstance(outcome, Reply) and outcome.status == 429
        call = replace(call, pause_s=delay_s, is_limited=is_limited)
    if isinstance(outcome, NoReply):
        raise (OutcomeUnknown if is_open else Unavailable)(UNREACHABLE, 0, outcome.reason)
    if _is_not_ready(outcome):
        raise Unavailable(UNREACHABLE, outcome.status, "the service is not ready yet")
    is_redirect = 300 <= outcome.status < 400
    is_answer = outcome.status < 300 or (call.any_status and not is_redirect)
    if is_answer and isinstance(outcome.body, dict):
        return outcome
    raise error_from(outcome, is_write=call.is_write)


def retry_delay_s(
    call: Call, attempt: int, outcome: Reply | NoReply, *, jitter: float = 0.0
) -> float | None:
    """Decide whether a call is made again, and after how many seconds; None means no.

    Args:
        call: what was sent.
        attempt: how often it has been sent, 1 after the first time.
        outcome: what came of it.
        jitter: 0 to 1, how much longer than the least the pause is.
    """
    if attempt >= ATTEMPTS_MAX:
        return None
    delay_s = _FIRST_RETRY_DELAY_S * 2.0 ** (attempt - 1)
    longer = 1.0 + _JITTER_SHARE * jitter
    if isinstance(outcome, NoReply):
        return delay_s * longer if call.repeatable or not outcome.sent else None
    if _is_not_ready(outcome):
        return delay_s * longer
    if outcome.status not in _RETRIED_STATUSES or call.any_status or not call.repeatable:
        return None
    if _code(outcome) in _LASTING_CODES:
        return None
    return min(max(delay_s, _retry_after_s(outcome) or 0.0) * longer, RETRY_DELAY_S_MAX)


def _retry_after_s(reply: Reply) -> float | None:
    asked = reply.headers.get("retry-after", "")
    return float(asked) if asked.isdecimal() else None


def _code(reply: Reply) -> str:
    problem = reply.body if isinstance(reply.body, dict) else {}
    return str(problem.get("code") or problem.get("error") or f"HTTP_{reply.status}")


def _may_have_worked(outcome: Reply | NoReply) -> bool:
    if isinstance(outcome, NoReply):
        return outcome.sent
    return outcome.status >= 500


def _is_nothing_left(outcome: Reply | NoReply) -> bool:
    return isinstance(outcome, Reply) and outcome.status == 404 and _code(outcome) == "NOT_FOUND"


def _is_not_ready(reply: Reply) -> bool:
    """Say whether the proxy answered in place of the service, which speaks JSON also in a 404."""
    return reply.status == 404 and reply.body is None


def error_from(reply: Reply, *, is_write: bool = False) -> CallboardError:
    """Read a refusal; bodies that are not problem details (a proxy's page) are described."""
    problem = reply.body if isinstance(reply.body, dict) else {}
    code = _code(reply)
    detail = problem.get("detail") or problem.get("message") or problem.get("title")
    if 300 <= reply.status < 400:
        location = reply.headers.get("location", "nowhere")[:200]
        code = f"HTTP_{reply.status}"
        detail = f"the service answered with a redirect to {location}, which is not followed"
    return error_class(code, reply.status, is_write=is_write)(
        code,
        reply.status,
        str(detail or f"the service answered with status {reply.status}"),
        tuple(error for error in problem.get("errors") or () if isinstance(error, dict)),
        problem.get("requestId") or reply.headers.get("x-request-id"),
        _retry_after_s(reply),
    )


def _one(call: Call) -> Steps:
    reply = yield call
    assert isinstance(reply.body, dict), "the driver lets JSON objects through only"
    return reply.body


def _get(path: str, **query: Any) -> Steps:
    given = {name: value for name, value in query.items() if value is not None}
    flags = {name: str(value).lower() for name, value in given.items() if isinstance(value, bool)}
    return _one(Call("GET", path, query=given | flags))


def reading(path: str) -> Callable[[str], Steps]:
    """Return the operation that reads one record by its id.

    Args:
        path: of the record, `{}` for the id.
    """

    def read(record_id: str) -> Steps:
        return _get(path.format(_segment(record_id)))

    return read


def listing(path: str, query: Callable[P, object], **defaults: Any) -> Callable[P, Steps]:
    """Return the operation that reads a page of a list.

    Args:
        path: of the list.
        query: the class of its query, whose members are the arguments.
        defaults: of arguments that are not given.
    """

    def read(*args: P.args, **kwargs: P.kwargs) -> Steps:
        query(*args, **kwargs)  # refuses an argument that is no member
        given = defaults | kwargs
        return _get(path, **{json_name(name): _sent(name, value) for name, value in given.items()})

    # The arguments that `help` shows.
    read.__signature__ = inspect.signature(query)  # type: ignore[attr-defined]
    return read


def _sent(name: str, value: Any) -> Any:
    """Return a filter as it is sent; times are given in Unix milliseconds."""
    if name.endswith("_time") and isinstance(value, int):
        return datetime.fromtimestamp(value / 1_000, UTC).isoformat()
    return value


def listing_of(path: str, query: Callable[P, object]) -> Callable[Concatenate[str, P], Steps]:
    """Return the operation that reads a page of a list that belongs to one record.

    Args:
        path: of the list, `{}` for the record's id.
        query: the class of its query, whose members are the arguments beside the id.
    """

    def read(record_id: str, /, *args: P.args, **kwargs: P.kwargs) -> Steps:
        return listing(path.format(_segment(record_id)), query)(*args, **kwargs)

    own = inspect.signature(query)
    record_id = inspect.Parameter("record_id", inspect.Parameter.POSITIONAL_ONLY)
    shown = own.replace(parameters=[record_id, *own.parameters.values()])
    read.__signature__ = shown  # type: ignore[attr-defined]
    return read


def sending(
    method: str, path: str, **names: str
) -> Callable[[Callable[P, None]], Callable[P, Steps]]:
    """Return a decorator that makes a function's arguments an operation; its body is not run.

    Arguments that the path has in braces stand in it. The others are members of the body, of a GET
    the query; None is left out. A write carries an idempotency key, so that it may be repeated: the
    argument `idempotency_key`, if it has that, or a new one.

    Args:
        names: of members whose name is not the argument's in camel case.
    """

    def made(declared: Callable[P, None]) -> Callable[P, Steps]:
        signature = inspect.signature(declared)

        @wraps(declared)
        def build(*args: P.args, **kwargs: P.kwargs) -> Steps:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            key = bound.arguments.pop("idempotency_key", None)
            placed, members = {}, {}
            for name, value in bound.arguments.items():
                if f"{{{name}}}" in path:
                    placed[name] = _segment(value)
                elif value is not None:
                    sent = dict(value) if isinstance(value, Mapping) else value
                    members[names.get(name) or json_name(name)] = sent
            full_path = path.format(**placed)
            if method == "GET":
                return _get(full_path, **members)
            return _post(full_path, key, **members)

        # What `help` shows.
        build.__signature__ = signature.replace(return_annotation=Steps)  # type: ignore[attr-defined]
        return build

    return made


def _post(path: str, idempotency_key: str | None = None, /, **members: Any) -> Steps:
    body = {name: value for name, value in members.items() if value is not None}
    return _one(Call("POST", path, body=body, headers=_keyed(idempotency_key)))


def _segment(value: str) -> str:
    return quote(value, safe=":")


def _keyed(idempotency_key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}


def publish(
    manifest: Mapping[str, Any],
    *,
    wait_s: float | None = None,
    idempotency_key: str | None = None,
) -> Steps:
    """Publish a workflow; safe to retry, because every call carries an idempotency key.

    Args:
        manifest: the workflow manifest.
        wait_s: hold the answer up to so many seconds (≤ 60) for the finished record.
        idempotency_key: the key to use instead of a fresh one.

    Reference: features.md (Workflows).
    """
    headers = _keyed(idempotency_key)
    held_s = min(wait_s or 0.0, PREFER_WAIT_S_MAX)
    if held_s > 0:
        headers["Prefer"] = f"wait={held_s:g}"
    path = "/v1/workflows/publish"
    return _one(Call("POST", path, body=dict(manifest), headers=headers, wait_s=held_s))


def suggest(description: str) -> Steps:
    """Draft a workflow from a description in words; nothing is stored.

    Reference: features.md (Planning).
    """
    body = {"description": description}
    # The service may ask a model, which takes its time.
    return _one(Call("POST", "/v1/workflows/suggest", body=body, wait_s=60.0))


def publish_bulk(
    manifests: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
) -> Steps:
    """Publish up to 1,000 workflows; `results` holds a reply or a problem for each, in order."""
    body = {"workflows": [dict(manifest) for manifest in manifests]}
    path = "/v1/workflows/publish/bulk"
    return _one(Call("POST", path, body=body, headers=_keyed(idempotency_key), wait_s=60.0))


def wait(workflow_id: str, *, timeout_s: float | None = None) -> Steps:
    """Return the record once the workflow has ended, or as it stands after `timeout_s` seconds."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s = 0.0
    while True:
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        held_s = PREFER_WAIT_S_MAX if left_s is None else min(left_s, PREFER_WAIT_S_MAX)
        asked_at = time.monotonic()
        reply = yield Call(
            "GET",
            f"/v1/workflows/{_segment(workflow_id)}",
            headers={"Prefer": f"wait={held_s:g}"},
            wait_s=held_s,
            pause_s=pause_s if left_s is None else min(pause_s, left_s),
        )
        record: Json = reply.body
        if record.get("status") in FINISHED or (left_s is not None and left_s <= 0):
            return record
        pause_s = 0.0 if time.monotonic() - asked_at > _POLL_PAUSE_S else _POLL_PAUSE_S


@sending("POST", "/v1/workflows/{workflow_id}/cancel")
def cancel(workflow_id: str, *, reason: str = "user_request", details: str = "") -> None:
    """Cancel a workflow; what is left in its escrow returns. Reference: features.md
    (Cancellation)."""


@sending("POST", "/v1/workflows/{workflow_id}/resume")
def resume(workflow_id: str) -> None:
    """Drive a quarantined workflow on."""


def node_result(
    workflow_id: str,
    node_id: str,
    result_id: str,
    *,
    result: Mapping[str, Any] | None = None,
    error: str | None = None,
    code: str | None = None,
    metrics: Mapping[str, Any] | None = None,
    agent_did: str | None = None,
    signature: str | None = None,
    public_key: str | None = None,
) -> Steps:
    """Hand in the result of a dispatch that was accepted before, or its error.

    Args:
        result_id: the dispatch's `resultId`, which is the credential.
        signature: the agent's, over the result; `public_key` is the key it was made with.

    Reference: features.md (Asynchronous results).
    """
    members = {"error": error, "code": code, "metrics": metrics, "agentDid": agent_did}
    members |= {"signature": signature, "publicKey": public_key}
    body: Json = {"workflowId": workflow_id, "nodeId": node_id, "resultId": result_id}
    body |= {name: value for name, value in members.items() if value is not None}
    body["status"] = "success" if error is None else "error"
    if error is None:
        body["result"] = dict(result or {})
    # Without a key, the same error again is refused as ALREADY_SETTLED although it was taken.
    headers = {} if error is None else _keyed(None)
    return _one(Call("POST", "/v1/workflows/nodeResult", body=body, headers=headers))


@dataclass(frozen=True, slots=True)
class CardSigner:
    """Signs agent cards for one deployment and one owner.

    Args:
        key: of the agent.
        audience: the deployment's address, as its clients use it.
        owner_did: the agent's owner, by the deployment's word or as claimed here.
    """

    key: DidKey
    audience: str
    owner_did: str

    def registration(
        self, card: Mapping[str, Any], signing_secret: str | None, now_ms: int
    ) -> Json:
        """Return the body of a registration. The time is its counter: a later card counts more."""
        return signed_registration(
            card,
            private_key=self.key.seed,
            audience=self.audience,
            owner_did=self.owner_did,
            issued_ms=now_ms,
            counter=now_ms,
            signing_secret=signing_secret,
        )


def register_agent(
    card: Mapping[str, Any],
    *,
    signing_secret: str | None = None,
    signer: CardSigner | None = None,
) -> Steps:
    """Register an agent card, or replace it. Reference: features.md (Registration).

    Args:
        card: the agent card in its JSON form.
        signing_secret: the secret the coordinator signs dispatches to this agent with.
        signer: signs the card; None for a card without a signature.

    Raises:
        ValueError: the card has no canonical form to be signed.
    """
    body: Json = {"acard": dict(card)}
    if signer is not None:
        body = signer.registration(card, signing_secret, time.time_ns() // 1_000_000)
    elif signing_secret is not None:
        body["signingSecret"] = signing_secret
    return _one(Call("POST", "/v1/agents/register", body=body, headers=_keyed(None)))


def agent(did: str, *, include_inactive: bool = False) -> Steps:
    """Read a registered agent.

    Args:
        include_inactive: also one of the caller's own that was deregistered.
    """
    return _get(f"/v1/agents/{_segment(did)}", includeInactive=include_inactive or None)


@sending("GET", "/v1/discover", words="q")
def discover(
    words: str | None = None,
    *,
    capability_id: str | None = None,
    owner_did: str | None = None,
    limit: int | None = None,
    min_reputation: float | None = None,
    max_price_cents: int | None = None,
    max_latency_ms: int | None = None,
    region: str | None = None,
    subnet: str | None = None,
    availability: str | None = None,
) -> None:
    """Find agents, the best first.

    Args:
        words: any of them is enough.
        capability_id: an id, its beginning and `*`, or an id and versions: `cap.x.y.v1@>=1.2`.
        min_reputation: 0 to 1.
        max_latency_ms: of an agent's average.
    """


def deregister_agent(did: str) -> Steps:
    """Take an agent out of service; registering it again brings it back."""
    return _one(Call("DELETE", f"/v1/agents/{_segment(did)}"))


def heartbeat(
    did: str,
    *,
    status: str | None = None,
    load: float | None = None,
    queue_depth: int | None = None,
    version: str | None = None,
    token: str | None = None,
) -> Steps:
    """Say how an agent is; a changed status is in force when this returns.

    Args:
        status: for example `healthy`, `busy`, `draining`, `stopped`.
        load: the share of its capacity that is taken, 0 to 1.
        queue_depth: how many dispatches wait in it.
        version: the agent's.
        token: the `heartbeatToken` of its registration, instead of the client's key.

    Reference: features.md (Heartbeats and health).
    """
    members = {"status": status, "load": load, "queueDepth": queue_depth, "version": version}
    body = {name: value for name, value in members.items() if value is not None}
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return _one(Call("POST", f"/v1/agents/{_segment(did)}/heartbeat", body=body, headers=headers))


@sending("GET", "/v1/ledger/balance")
def balance() -> None:
    """Read the caller's balance in credits. Reference: money.md (Accounts)."""


@sending("POST", "/v1/ledger/deposit", amount_credits="amount")
def deposit(
    amount_credits: float | str,
    *,
    owner_did: str | None = None,
    idempotency_key: str | None = None,
) -> None:
    """Add credits to an account; safe to retry. Reference: money.md (Accounts).

    Args:
        amount_credits: credits, at most 6 decimals; text keeps decimals exact.
        owner_did: the owner of the account, the caller by default.
        idempotency_key: the key to use instead of a fresh one.
    """


@sending("POST", "/v1/keys")
def create_key(
    owner_did: str,
    *,
    name: str | None = None,
    scopes: Sequence[str] | None = None,
    expires_at: str | None = None,
    rate_class: str | None = None,
) -> None:
    """Make an API key; its `key` is shown by this reply and never again.

    Args:
        scopes: its rights; default those of the default ones that the caller has.
        expires_at: its end, ISO 8601; default never, or the end of the caller's credential.
        rate_class: `standard` or `unlimited`; set by administrators.
    """


@sending("POST", "/v1/keys/{key_id}/rotate", overlap_s="overlapSeconds")
def rotate_key(key_id: str, *, overlap_s: int = 0) -> None:
    """Give an API key another secret; its `key` is shown by this reply and never again.

    Args:
        overlap_s: how long the secret of now still opens, at most 86,400 s. With 0, a caller that
            rotates its own key and loses the reply has no key any more.
    """


def revoke_key(key_id: str) -> Steps:
    """Revoke an API key, and all made with it."""
    done = {"success": True, "id": key_id, "keyId": key_id}
    return _one(Call("DELETE", f"/v1/keys/{_segment(key_id)}", done=done))


def health() -> Steps:
    """Read the service's health, also while a part of it is down; needs no key."""
    return _one(Call("GET", "/health", any_status=True))
