"""Every answer of an agent. Reference: features.md (Agent interface, Dispatch signatures),
http.md (Errors)."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest

from callboard import Agent, AgentError, Context, Later
from callboard.kit import dispatch_replies
from core.timestamps import iso_ms
from core.trust.signing import sign_body


def an_agent(**options: Any) -> Agent:
    agent = Agent("did:net:a", "A", **options)

    @agent.capability("cap.text.upper.v1", price_cents=3)
    def upper(text: str, mark: str = "!") -> dict[str, Any]:
        """Write in capitals.

        The rest of the docstring is not for the card.
        """
        return {"text": text.upper() + mark}

    @agent.capability("cap.echo.v1")
    async def echo(inputs: dict[str, Any], parents: dict[str, Any]) -> dict[str, Any]:
        return {"inputs": inputs, "parents": parents}

    return agent


def dispatch(capability_id: str, event_id: str = "e1", **members: Any) -> bytes:
    return json.dumps({"eventId": event_id, "capabilityId": capability_id, **members}).encode()


def ask(agent: Agent, body: bytes, signature: str | None = None) -> tuple[int, Any]:
    answer = asyncio.run(agent.answer(body, signature))
    return answer.status, json.loads(answer.body)


def test_a_served_capability_succeeds_and_echoes_the_event() -> None:
    status, reply = ask(an_agent(), dispatch("cap.text.upper.v1", inputs={"text": "a"}))
    assert status == 200
    assert reply.pop("metrics")["latency_ms"] >= 0
    assert reply == {"eventId": "e1", "status": "success", "result": {"text": "A!"}}


def test_an_unknown_capability_is_named_in_a_404() -> None:
    status, reply = ask(an_agent(), dispatch("cap.other.v1"))
    assert (status, reply["eventId"], reply["status"]) == (404, "e1", "error")
    assert "cap.other.v1" in reply["error"]


@pytest.mark.parametrize("signature", [None, "0" * 64])
def test_a_wrong_or_missing_signature_is_a_401(signature: str | None) -> None:
    body = dispatch("cap.text.upper.v1", inputs={"text": "a"})
    status, reply = ask(an_agent(signing_secret="s"), body, signature)
    expected = {"eventId": "e1", "status": "error", "error": "Invalid signature"}
    assert (status, reply) == (401, expected)


NOW_S = 1_800_000_000.0


def at(seconds: float) -> str:
    """Return the time so many seconds after the agent's now, as the coordinator writes it."""
    return iso_ms(int((NOW_S + seconds) * 1_000))


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"agentDid": "did:net:b", "timestamp": at(0)}, "WRONG_AGENT"),
        ({"agentDid": "did:net:b"}, "WRONG_AGENT"),
        ({"agentDid": "did:net:a", "timestamp": at(-300.001)}, "STALE_TIMESTAMP"),
        ({"agentDid": "did:net:a", "timestamp": at(300.001)}, "STALE_TIMESTAMP"),
        ({"timestamp": "yesterday"}, "STALE_TIMESTAMP"),
        ({"timestamp": "2027-01-15T08:00:00"}, "STALE_TIMESTAMP"),
    ],
)
def test_a_dispatch_for_another_agent_or_another_time_is_a_401(
    members: dict[str, str], code: str
) -> None:
    """One agent cannot hand another what it was sent, although both share the secret."""
    agent = an_agent(signing_secret="s", now_s=lambda: NOW_S)
    body = dispatch("cap.text.upper.v1", inputs={"text": "a"}, **members)
    status, reply = ask(agent, body, sign_body(body, "s"))
    expected = {"eventId": "e1", "status": "error", "error": "Invalid signature", "code": code}
    assert (status, reply) == (401, expected)
    assert agent.statistics().answered == 0


@pytest.mark.parametrize("seconds", [-299.9, 0, 299.9])
def test_a_dispatch_for_this_agent_and_this_time_is_answered(seconds: float) -> None:
    agent = an_agent(signing_secret="s", now_s=lambda: NOW_S)
    addressed = {"agentDid": "did:net:a", "timestamp": at(seconds)}
    body = dispatch("cap.text.upper.v1", inputs={"text": "a"}, **addressed)
    first = ask(agent, body, sign_body(body, "s"))
    assert first[0] == 200
    assert ask(agent, body, sign_body(body, "s")) == first, "a repeat gets the reply it had"
    assert agent.statistics().repeated == 1


@pytest.mark.parametrize("members", [{}, {"inputs": None}, {"inputs": {}}])
def test_missing_inputs_are_an_empty_object(members: dict[str, Any]) -> None:
    _, reply = ask(an_agent(), dispatch("cap.echo.v1", **members))
    assert reply["result"] == {"inputs": {}, "parents": {}}


def test_parents_arrive_whole() -> None:
    parents = {"fetch": {"result": {"body": None}}}
    _, reply = ask(an_agent(), dispatch("cap.echo.v1", parents=parents))
    assert reply["result"]["parents"] == parents


def test_a_handler_that_throws_is_a_500_with_its_message_and_code() -> None:
    agent = an_agent()

    class Broken(Exception):
        code = "PRESS_JAMMED"

    @agent.capability("cap.broken.v1")
    def broken() -> dict[str, Any]:
        raise Broken("the press is jammed")

    assert ask(agent, dispatch("cap.broken.v1")) == (
        500,
        {
            "eventId": "e1",
            "status": "error",
            "error": "Broken: the press is jammed",
            "code": "PRESS_JAMMED",
        },
    )
    assert agent.statistics().failed == 1


@pytest.mark.parametrize("result", ["text", None, [1], {"x": object()}])
def test_a_result_that_is_no_json_object_is_a_500(result: Any) -> None:
    agent = an_agent()
    agent.capability("cap.odd.v1")(lambda: result)
    status, reply = ask(agent, dispatch("cap.odd.v1"))
    assert (status, reply["status"]) == (500, "error")


def test_a_refusal_that_repeating_cannot_help_is_a_400() -> None:
    agent = an_agent()

    @agent.capability("cap.picky.v1")
    def picky() -> dict[str, Any]:
        raise AgentError("no such page", "GONE", final=True)

    status, reply = ask(agent, dispatch("cap.picky.v1"))
    assert (status, reply["error"], reply["code"]) == (400, "no such page", "GONE")


def test_a_missing_input_is_named_in_a_400() -> None:
    status, reply = ask(an_agent(), dispatch("cap.text.upper.v1", inputs={"mark": "?"}))
    assert (status, reply["code"]) == (400, "MISSING_INPUT")
    assert "'text'" in reply["error"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"eventId":"e1"}', b"\xff"])
def test_what_is_no_dispatch_is_a_400(body: bytes) -> None:
    status, reply = ask(an_agent(), body)
    assert (status, reply["status"]) == (400, "error")


def counting_agent() -> tuple[Agent, list[str]]:
    agent, runs = Agent("did:net:c"), []

    @agent.capability("cap.count.v1")
    async def count(inputs: dict[str, Any]) -> dict[str, Any]:
        runs.append(inputs["name"])
        return {"run": len(runs)}

    return agent, runs


async def test_a_repeated_event_gets_the_first_reply_and_runs_once() -> None:
    agent, runs = counting_agent()
    body = dispatch("cap.count.v1", inputs={"name": "a"})

    one, other = await asyncio.gather(agent.answer(body, None), agent.answer(body, None))
    answers = [one, other, await agent.answer(body, None)]
    assert answers[0] == answers[1] == answers[2]
    assert runs == ["a"]
    assert agent.statistics().repeated == 2


async def attempt(
    agent: Agent,
    number: int,
    key: str | None = "k",
    node: str = "n",
    capability: str = "cap.slow.v1",
) -> Any:
    """Return the reply to an attempt at a node."""
    body = dispatch(capability, f"e{number}", workflowId="w", nodeId=node, attempt=number)
    return json.loads((await agent.answer(body, None, None, key)).body)


async def test_another_attempt_at_the_same_work_joins_it_and_then_gets_its_reply() -> None:
    """Its connection broke, or its time was over: each attempt did the work once more."""
    agent, runs = Agent("did:net:a"), []

    gate = asyncio.Event()

    @agent.capability("cap.slow.v1")
    async def slow(context: Context) -> dict[str, Any]:
        runs.append(context.idempotency_key)
        await gate.wait()
        return {"n": len(runs)}

    first = asyncio.create_task(attempt(agent, 1))
    second = asyncio.create_task(attempt(agent, 2))
    await asyncio.sleep(0)
    gate.set()
    replies = [await first, await second, await attempt(agent, 3), await attempt(agent, 2)]
    others = [await attempt(agent, 4, "other"), await attempt(agent, 5, node="m")]
    replies = [*replies, *others, await attempt(agent, 6, None)]
    assert [reply["eventId"] for reply in replies] == ["e1", "e2", "e3", "e2", "e4", "e5", "e6"]
    assert [reply["result"]["n"] for reply in replies] == [1, 1, 1, 1, 2, 3, 4]
    assert runs == ["k", "other", "k", None]


@pytest.mark.parametrize("how", ["fails", "is refused", "is cancelled", "comes later"])
def test_work_without_a_reply_to_keep_is_done_once_more(how: str) -> None:
    agent, runs = Agent("did:net:a"), []

    @agent.capability("cap.slow.v1")
    async def slow(later: Later) -> Any:
        runs.append(1)
        if len(runs) > 1:
            return {"n": 2}
        if how == "comes later":
            return later
        if how == "is cancelled":
            raise asyncio.CancelledError
        raise AgentError("no luck", final=how == "is refused")

    async def attempts() -> list[Any]:
        body = {"workflowId": "w", "nodeId": "n", "resultId": "r"}
        return [
            json.loads(
                (await agent.answer(dispatch("cap.slow.v1", e, **body), None, None, "k")).body
            )
            for e in ("e1", "e2", "e1")
        ]

    first, second, again = asyncio.run(attempts())
    assert second["result"] == {"n": 2}
    is_taken_back = how == "is cancelled"
    assert again == first or is_taken_back
    assert len(runs) == 2 + is_taken_back


def test_a_cancellation_of_a_later_attempt_stops_the_work_that_it_joined() -> None:
    agent = Agent("did:net:a")

    async def cancel_it() -> list[Any]:
        @agent.capability("cap.slow.v1")
        async def slow() -> dict[str, Any]:
            await asyncio.Event().wait()
            raise AssertionError("never reached")

        attempts = [asyncio.create_task(attempt(agent, number)) for number in (1, 2)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        notice = {"eventId": "e2", "workflowId": "w", "nodeId": "n", "reason": "user_request"}
        await agent.cancel(json.dumps(notice).encode(), None)
        return [(await one)["code"] for one in attempts]

    assert asyncio.run(cancel_it()) == ["CANCELLED", "CANCELLED"]


async def test_the_keys_of_works_are_bounded() -> None:
    agent, _ = counting_agent()

    for number in range(dispatch_replies.REMEMBERED_REPLIES_MAX + 10):
        await attempt(agent, number, f"k{number}", capability="cap.count.v1")
    assert len(agent._first_events) == dispatch_replies.REMEMBERED_REPLIES_MAX


async def test_only_the_newest_replies_are_remembered() -> None:
    agent, runs = counting_agent()

    for n in range(dispatch_replies.REMEMBERED_REPLIES_MAX + 1):
        body = dispatch("cap.count.v1", f"e{n}", inputs={"name": str(n)})
        await agent.answer(body, None)
    for n in (0, dispatch_replies.REMEMBERED_REPLIES_MAX):
        body = dispatch("cap.count.v1", f"e{n}", inputs={"name": f"again {n}"})
        await agent.answer(body, None)
    assert runs[-1] == "again 0"
    assert len(runs) == dispatch_replies.REMEMBERED_REPLIES_MAX + 2


async def test_large_replies_are_forgotten_sooner() -> None:
    agent, runs = Agent("did:net:a"), []
    filling = "x" * (dispatch_replies.REMEMBERED_BYTES_MAX // 4)

    @agent.capability("cap.large.v1")
    async def large() -> dict[str, Any]:
        runs.append(1)
        return {"filling": filling}

    for event_id in ("e1", "e2", "e3", "e4", "e4", "e1"):
        await agent.answer(dispatch("cap.large.v1", event_id), None)
    assert len(runs) == 5


async def test_a_cancellation_stops_an_asynchronous_handler() -> None:
    agent = Agent("did:net:a")

    started = asyncio.Event()

    @agent.capability("cap.slow.v1")
    async def slow() -> dict[str, Any]:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError("never reached")

    answering_task = asyncio.create_task(agent.answer(dispatch("cap.slow.v1"), None))
    await started.wait()
    notice = {"eventId": "e1", "workflowId": "w", "nodeId": "n", "reason": "user_request"}
    stopped = await agent.cancel(json.dumps(notice).encode(), None)
    (stopped, reply) = json.loads(stopped.body), json.loads((await answering_task).body)
    assert stopped == {"ok": True, "eventId": "e1", "stopped": True}
    assert (reply["status"], reply["code"]) == ("error", "CANCELLED")


async def test_work_that_was_cancelled_is_done_when_it_is_asked_for_again() -> None:
    """A dispatch that was taken back may come once more under its id, when it counts."""
    agent = Agent("did:net:a")

    started = asyncio.Event()

    @agent.capability("cap.slow.v1")
    async def slow() -> dict[str, Any]:
        if not started.is_set():
            started.set()
            await asyncio.Event().wait()
        return {"n": 1}

    first = asyncio.create_task(agent.answer(dispatch("cap.slow.v1"), None))
    await started.wait()
    notice = {"eventId": "e1", "workflowId": "w", "nodeId": "n", "reason": "error"}
    await agent.cancel(json.dumps(notice).encode(), None)
    await first
    reply = json.loads((await agent.answer(dispatch("cap.slow.v1"), None)).body)
    assert (reply["status"], reply["result"]) == ("success", {"n": 1})


def test_blocking_handlers_run_side_by_side() -> None:
    agent = Agent("did:net:a", max_concurrency=2)
    both = threading.Barrier(2, timeout=60)

    @agent.capability("cap.meet.v1")
    def meet() -> dict[str, Any]:
        both.wait()
        return {}

    async def ask_both() -> list[int]:
        bodies = [dispatch("cap.meet.v1", event_id) for event_id in ("e1", "e2")]
        answers = await asyncio.gather(*(agent.answer(body, None) for body in bodies))
        return [answer.status for answer in answers]

    assert asyncio.run(ask_both()) == [200, 200]


def test_the_card_says_what_the_decorators_said() -> None:
    assert an_agent(author="B").card("http://h:1").to_json() == {
        "did": "did:net:a",
        "endpoint": "http://h:1",
        "version": 1,
        "capabilities": [
            {
                "id": "cap.text.upper.v1",
                "description": "Write in capitals.",
                "price_cents": 3,
                "inputSchema": {
                    "type": "object",
                    "properties": {
                        "text": {"type": "string"},
                        "mark": {"type": "string", "default": "!"},
                    },
                    "required": ["text"],
                },
            },
            {"id": "cap.echo.v1", "description": ""},
        ],
        "metadata": {"name": "A", "author": "B"},
        "maxConcurrency": dispatch_replies.DEFAULT_CONCURRENCY,
    }
    choosy = an_agent(accepted_verifiers="any").card("http://h:1")
    assert choosy.to_json()["acceptedVerifiers"] == "any"


def test_a_capability_cannot_be_declared_twice() -> None:
    with pytest.raises(ValueError, match=r"already serves cap\.echo\.v1"):
        an_agent().capability("cap.echo.v1")(dict)


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: Agent("nina"), "did: got 'nina', expected a DID such as did:example:me"),
        (
            lambda: an_agent().capability("Nina Z")(ask),
            "capability 'Nina Z': id: got 'Nina Z', expected a capability id: 1 to 128 letters",
        ),
        (
            lambda: an_agent().capability("cap.x", price_cents=-1)(ask),
            "capability 'cap.x': price_cents: got -1, expected greater than or equal to 0",
        ),
        (lambda: Agent("did:net:a", "n" * 5_000), "agent did:net:a: name: got"),
    ],
)
def test_a_wrong_declaration_is_named_in_plain_words(
    declare: Callable[[], object], said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        declare()
    assert "pydantic" not in str(refused.value) and "\n" not in str(refused.value)
