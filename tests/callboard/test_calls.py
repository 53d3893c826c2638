"""What a client sends and when it sends it again, without a socket."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from callboard import calls
from callboard.calls import Call, NoReply, Reply, retry_delay_s, with_retries
from callboard.client import Client
from callboard.errors import UNREACHABLE, CallboardError, NotFound, OutcomeUnknown

READ = Call("GET", "/v1/x")
WRITE = Call("POST", "/v1/x", repeatable=False)


@pytest.mark.parametrize(
    ("call", "outcome", "is_repeated"),
    [
        (READ, NoReply("reset", sent=True), True),
        (READ, NoReply("refused", sent=False), True),
        (WRITE, NoReply("reset", sent=True), False),
        # What never left cannot have happened.
        (WRITE, NoReply("refused", sent=False), True),
        (READ, Reply(503, {}, {}), True),
        # 503 LEDGER_UNAVAILABLE leaves the outcome open: not for a write without a key.
        (WRITE, Reply(503, {}, {}), False),
        (READ, Reply(500, {}, {}), False),
        (READ, Reply(429, {"retry-after": "1"}, {}), True),
        (WRITE, Reply(429, {"retry-after": "1"}, {}), False),
        # A quota is used up until its day is over.
        (READ, Reply(429, {"retry-after": "1"}, {"code": "QUOTA_EXCEEDED"}), False),
        (READ, Reply(504, {}, {}), True),
        (READ, Reply(200, {}, {}), False),
        (Call("GET", "/health", any_status=True), Reply(503, {}, {}), False),
        # The proxy's own answer while the service starts: nothing has heard the call yet.
        (READ, Reply(404, {}, None), True),
        (WRITE, Reply(404, {}, None), True),
        (Call("GET", "/health", any_status=True), Reply(404, {}, None), True),
        (READ, Reply(404, {}, {"code": "NOT_FOUND"}), False),
        (READ, Reply(502, {}, None), True),
        (WRITE, Reply(502, {}, None), False),
    ],
)
def test_only_safe_calls_are_repeated(
    call: Call, outcome: Reply | NoReply, is_repeated: bool
) -> None:
    assert (retry_delay_s(call, 1, outcome) is not None) is is_repeated


def test_retries_are_bounded_and_wait_longer_each_time() -> None:
    delays = [retry_delay_s(READ, n, Reply(503, {}, {})) for n in range(1, calls.ATTEMPTS_MAX + 1)]
    waited = [delay for delay in delays if delay is not None]
    assert delays[-1] is None
    assert len(waited) == calls.ATTEMPTS_MAX - 1
    assert waited == sorted(set(waited))


@pytest.mark.parametrize(
    ("header", "delay_s"), [("7", 7.0), ("0", 0.2), ("3600", calls.RETRY_DELAY_S_MAX), ("x", 0.2)]
)
def test_retry_after_lengthens_within_bounds_and_never_shortens(
    header: str, delay_s: float
) -> None:
    assert retry_delay_s(READ, 1, Reply(503, {"retry-after": header}, {})) == delay_s


def test_jitter_only_lengthens_and_stays_within_bounds() -> None:
    busy = Reply(503, {"retry-after": "7"}, {})
    delays = [retry_delay_s(READ, 1, busy, jitter=jitter) for jitter in (0.0, 0.5, 1.0)]
    assert delays == [7.0, 8.75, 10.5]
    slow = Reply(503, {"retry-after": "29"}, {})
    assert retry_delay_s(READ, 1, slow, jitter=1.0) == calls.RETRY_DELAY_S_MAX


def test_a_write_that_was_ever_unanswered_has_an_unknown_outcome() -> None:
    steps = with_retries(Client.deposit(1), attempts_max=2)
    next(steps)
    steps.send(NoReply("reset", sent=True))
    with pytest.raises(OutcomeUnknown):
        steps.send(NoReply("refused", sent=False))


def test_publish_repeats_with_the_same_idempotency_key() -> None:
    steps = with_retries(Client.publish({"nodes": {}}), jitter=lambda: 0.0)
    first = next(steps)
    second = steps.send(NoReply("reset", sent=True))
    third = steps.send(Reply(503, {"retry-after": "2"}, {}))
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    assert third.headers == first.headers
    assert third.body == first.body == {"nodes": {}}
    assert third.pause_s == 2.0
    with pytest.raises(StopIteration) as end:
        steps.send(Reply(200, {}, {"workflowId": "w"}))
    assert end.value.value == {"workflowId": "w"}


read_workflow = Client.workflow


def test_a_service_that_does_not_get_ready_is_unreachable() -> None:
    steps = with_retries(read_workflow("w"))
    next(steps)
    for _ in range(calls.ATTEMPTS_MAX - 1):
        steps.send(Reply(404, {}, None))
    with pytest.raises(CallboardError) as refused:
        steps.send(Reply(404, {}, None))
    assert (refused.value.code, refused.value.status) == (UNREACHABLE, 404)


@pytest.mark.parametrize(
    "steps",
    [
        Client.cancel("w"),
        Client.create_key("did:net:p"),
        Client.node_result("w", "a", "r", error="no"),
    ],
)
def test_what_must_not_happen_twice_carries_a_key(steps: calls.Steps) -> None:
    call = next(steps)
    assert call.repeatable and call.headers["Idempotency-Key"]


GONE = Reply(404, {}, {"code": "NOT_FOUND"})


@pytest.mark.parametrize("remove", [Client.revoke_key, Client.unrevoke_agent])
@pytest.mark.parametrize("first", [NoReply("reset", sent=True), Reply(503, {}, {})])
def test_a_repeated_removal_that_finds_nothing_is_done(
    remove: Callable[[str], calls.Steps], first: Reply | NoReply
) -> None:
    steps = with_retries(remove("did:net:a"))
    next(steps)
    steps.send(first)
    with pytest.raises(StopIteration) as end:
        steps.send(GONE)
    assert (end.value.value["success"], end.value.value["id"]) == (True, "did:net:a")


@pytest.mark.parametrize("remove", [Client.revoke_key, Client.unrevoke_agent])
@pytest.mark.parametrize("first", [None, NoReply("refused", sent=False), Reply(429, {}, {})])
def test_a_removal_that_certainly_did_nothing_before_is_not_found(
    remove: Callable[[str], calls.Steps], first: Reply | NoReply | None
) -> None:
    steps = with_retries(remove("did:net:a"))
    next(steps)
    if first is not None:
        steps.send(first)
    with pytest.raises(NotFound):
        steps.send(GONE)


def test_two_publishes_carry_different_keys() -> None:
    one, other = next(Client.publish({})), next(Client.publish({}))
    assert one.headers["Idempotency-Key"] != other.headers["Idempotency-Key"]


def test_deposit_carries_an_idempotency_key() -> None:
    assert next(Client.deposit("1.5")).headers["Idempotency-Key"]
    assert next(Client.deposit(1, idempotency_key="k")).headers == {"Idempotency-Key": "k"}


def test_wait_asks_again_until_the_workflow_has_ended() -> None:
    steps = Client.wait("w")
    assert next(steps).headers["Prefer"] == "wait=60"
    again = steps.send(Reply(200, {}, {"status": "running"}))
    # The service answered at once: it is not asked again in a busy loop.
    assert again.pause_s > 0
    with pytest.raises(StopIteration) as end:
        steps.send(Reply(200, {}, {"status": "timeout"}))
    assert end.value.value == {"status": "timeout"}


def test_wait_with_a_timeout_returns_the_record_as_it_stands() -> None:
    steps = Client.wait("w", timeout_s=0)
    assert next(steps).headers["Prefer"] == "wait=0"
    with pytest.raises(StopIteration) as end:
        steps.send(Reply(200, {}, {"status": "running"}))
    assert end.value.value == {"status": "running"}


def test_ids_in_paths_are_escaped_but_dids_stay_readable() -> None:
    assert next(Client.agent("did:net:a/../b?c")).path == "/v1/agents/did:net:a%2F..%2Fb%3Fc"


@pytest.mark.parametrize(
    ("body", "code", "detail"),
    [
        ({"code": "NOT_FOUND", "detail": "no such workflow"}, "NOT_FOUND", "no such workflow"),
        ({"error": "AGENT_UNAVAILABLE"}, "AGENT_UNAVAILABLE", "the service answered with status"),
        (None, "HTTP_500", "the service answered with status 500"),
        (["odd"], "HTTP_500", "the service answered with status 500"),
        ({"code": "X", "errors": "odd"}, "X", "the service answered"),
    ],
)
def test_every_refusal_becomes_the_one_error(body: object, code: str, detail: str) -> None:
    steps = with_retries(read_workflow("w"))
    next(steps)
    with pytest.raises(CallboardError) as refused:
        steps.send(Reply(500, {"x-request-id": "r1"}, body))
    assert (refused.value.code, refused.value.status) == (code, 500)
    assert detail in refused.value.detail
    assert refused.value.request_id == "r1"
