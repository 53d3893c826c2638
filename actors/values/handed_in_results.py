"""Judges a result that an agent sends to `nodeResult`, by the same rules as a reply to a dispatch.

Pure. The value process runs it on the bytes of a request, so a replica never decodes a large result
itself. Reference: features.md (Dispatch). Decision limits-and-admission.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from core.canonical import canonical, hash_bytes
from core.errors import NodeErrorCode
from core.json_bounds import holds_wide_integer
from core.json_text import (
    DOUBLED,
    NotJson,
    Raw,
    UnreadNumber,
    duplicate_member,
    may_have_duplicates,
    read_foreign_json,
)
from core.message import Message
from core.schemas.json_defects import find_nul
from core.trust.signatures import is_signed_by, result_message
from core.workflow.events import Failure
from core.workflow.verdict import Success, find_verdict, judge_reply


class HandedIn(Message, frozen=True, kw_only=True):
    """A result as it was received, with a valid token of its dispatch.

    Args:
        body: the request's body.
        event_id: the id that the agent may echo.
        capability_id: the capability of the dispatch.
        is_verdict: whether it is a verifier's result. The workflow's owner reads only its verdict.
        agent_keys: the agent's keys, replaced ones included, if the result is signed.
    """

    body: bytes
    event_id: str
    capability_id: str
    is_verdict: bool
    agent_keys: tuple[str, ...] = ()


class HandedInResult(Message, frozen=True, kw_only=True):
    """A valid result: its canonical text, and the agent's unchecked statements about it.

    `is_wide`: the result is signed and contains an integer beyond 2^53. `is_request_signed`: the
    signature covers the members of the request instead of the result.
    """

    text: bytes
    output_hash: str
    metrics: dict[str, Any]
    signature: Any
    public_key: Any
    is_wide: bool = False
    is_request_signed: bool = False


class HandedInFailure(Message, frozen=True):
    """The agent reports that it has failed."""

    failure: Failure


class HandedInDefect(Message, frozen=True):
    """A defect of the body. The agent can correct the body and send it again.

    Args:
        path: the path of the wrong value, "$" for the whole body.
        got: the wrong value or what is wrong with it.
        expected: what the value should be.
    """

    path: str
    got: str
    expected: str


_SIGNED_MEMBERS: Final = ("workflowId", "nodeId", "result", "metrics", "resultId")
JudgedHandIn: TypeAlias = HandedInResult | HandedInFailure | HandedInDefect


def judge_handed_in(handed_in: HandedIn) -> JudgedHandIn:
    """Return the judgement of a received result: a result, a failure, or a defect."""
    if (defect := find_nul(handed_in.body)) is not None:
        return HandedInDefect("$", defect, "text without U+0000")
    value: Any = None
    try:
        value = read_foreign_json(handed_in.body)
        is_suspect = may_have_duplicates(handed_in.body, value)
    except UnreadNumber as error:
        found = error.problem
        return HandedInDefect(found.path or "$", found.got, found.expected)
    except NotJson:
        is_suspect = False  # `judge_reply` describes the error
    if is_suspect and (doubled := duplicate_member(handed_in.body)):
        return HandedInDefect(doubled, *DOUBLED)
    verdict = judge_reply(
        200,
        "application/json",
        handed_in.body,
        event_id=handed_in.event_id,
        capability_id=handed_in.capability_id,
    )
    if isinstance(verdict, Failure):
        if verdict.code is not NodeErrorCode.INVALID_REPLY:
            return HandedInFailure(verdict)
        return HandedInDefect("$", verdict.message, "a result with status success, or an error")
    if not isinstance(verdict, Success):
        return HandedInDefect("$", "neither a result nor an error", "one of them")
    try:
        text = result_text(verdict.result, is_verdict=handed_in.is_verdict)
    except ValueError as error:
        return HandedInDefect("result", str(error), "a value with a canonical form")
    return HandedInResult(
        text=text,
        output_hash=hash_bytes(text),
        metrics=verdict.metrics,
        signature=_words(verdict.signature),
        public_key=_words(verdict.public_key),
        is_wide=verdict.signature is not None and holds_wide_integer(verdict.result),
        is_request_signed=_is_request_signed(
            handed_in.body, value, hash_bytes(text), handed_in.agent_keys, verdict.signature
        ),
    )


def _is_request_signed(
    request: bytes, body: dict[str, Any], output_hash: str, keys: tuple[str, ...], signature: Any
) -> bool:
    """Say whether the signature covers `JSON.stringify` of the request's members, not the result.

    A signature that covers the result itself gives False. The members' texts are taken unchanged
    from the request, because existing clients make the request and the signed text from the same
    values.
    Reference: features.md (Signed results).
    """
    if not keys or not isinstance(signature, str):
        return False
    usual = result_message(str(body.get("nodeId")), str(body.get("workflowId")), output_hash)
    if any(is_signed_by(key, usual, signature) for key in keys):
        return False
    try:
        spelt = msgspec.json.decode(request, type=dict[str, Raw])
    except msgspec.DecodeError:
        return False
    members = (
        b'"%b":%b' % (name.encode(), spelt[name]) for name in _SIGNED_MEMBERS if name in spelt
    )
    message = b"{%b}" % b",".join(members)
    return any(is_signed_by(key, message, signature) for key in keys)


def result_text(result: Any, *, is_verdict: bool) -> bytes:
    """Return the canonical text of a result, as the workflow's owner receives it.

    Args:
        is_verdict: whether it is a verifier's result. The owner then receives only the verdict
            (true, false, or null for neither), so it does not parse a large text in its loop.

    Raises:
        ValueError: the result has no canonical form.
    """
    return canonical({"approved": find_verdict(result)} if is_verdict else result)


def _words(value: Any) -> Any:
    """Return a signature or key as the agent sent it; "" for a value that is not a text.

    Such a value is invalid and may be large, so it is not passed on.
    """
    return value if value is None or isinstance(value, str) else ""
