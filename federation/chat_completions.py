"""Queries a model with the protocol of OpenAI's chat completions, through the egress gate.

A request has only the fields that every server of this protocol accepts: the name of the model and
the messages. Redirects are not followed. A request is never repeated, because each one costs the
operator money. If a call is cancelled, its connection is closed. Decision planning.
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
    """A model and the API that serves it.

    `url`: the base URL of the API, `https://…/v1`. `name`: the name of the model. `key`: the API
    key, "" without one. `timeout_s`: the most time for a whole call, seconds. `egress_allow`: CIDR
    networks to which connections are allowed although they are not public.
    """

    url: str
    name: str
    key: str = field(repr=False)
    timeout_s: float
    egress_allow: tuple[str, ...]


class ModelUnavailable(Exception):
    """A model gave no usable reply; the text has the reason, only for the log."""


class _Message(Struct):
    content: str


class _Choice(Struct):
    message: _Message


class _Completion(Struct):
    choices: list[_Choice]


async def complete_chat(model: ChatModel, messages: Sequence[Mapping[str, str]]) -> str:
    """Send messages to a model and return the text of its reply.

    Args:
        model: the model.
        messages: objects with the members `role` and `content`.

    Raises:
        ModelUnavailable: there is no usable reply, or it is larger than 256 KiB.
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
