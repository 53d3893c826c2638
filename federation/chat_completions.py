"""Asks a model by the protocol of OpenAI's chat completions, through the egress gate.

Sends what every server of that protocol takes, and nothing else: a model's name and messages. A
redirect is a reply, and no answer; nothing is sent twice, for it costs the operator money. A wait
that is cancelled closes the connection. Decision planning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec import Struct

from federation.documents import DocumentUnavailable, exchange
from federation.http_client import HttpRequest

REPLY_BYTES_MAX: Final = 256 * 1024
CONNECT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A model and where it is asked.

    `url`: of the API, `https://…/v1`; an address that is not public only where it may be reached.
    `timeout_s`: for all of a call. `egress_allow`: networks that may be reached, public or not.
    """

    url: str
    name: str
    key: str = field(repr=False)
    timeout_s: float
    egress_allow: tuple[str, ...]


class ModelUnavailable(Exception):
    """There is no answer; the text says why, for the log alone."""


class _Message(Struct):
    content: str


class _Choice(Struct):
    message: _Message


class _Completion(Struct):
    choices: list[_Choice]


async def complete_chat(model: ChatModel, messages: Sequence[Mapping[str, str]]) -> str:
    """Return what a model answers to messages.

    Args:
        messages: of `role` and `content`.

    Raises:
        ModelUnavailable: there is no answer, or it is larger than 256 KiB.
    """
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if model.key:
        headers["Authorization"] = f"Bearer {model.key}"
    body = msgspec.json.encode({"model": model.name, "messages": messages})
    request = HttpRequest(
        "POST",
        f"{model.url.rstrip('/')}/chat/completions",
        headers,
        body,
        CONNECT_TIMEOUT_S,
        model.timeout_s,
        REPLY_BYTES_MAX,
    )
    try:
        reply = await exchange(request, model.egress_allow)
    except (DocumentUnavailable, ValueError) as error:
        raise ModelUnavailable(str(error)) from None
    try:
        found = msgspec.json.decode(reply, type=_Completion)
        return found.choices[0].message.content
    except (msgspec.MsgspecError, RecursionError, LookupError, UnicodeError):
        raise ModelUnavailable("the reply is no chat completion") from None
