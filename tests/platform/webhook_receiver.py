"""A receiver of webhooks: a real HTTP server on loopback that behaves as its paths say."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.platform.loopback import Quiet, loopback


@dataclass(frozen=True)
class Message:
    """A request as it came. `path`: what the receiver was asked to do with it."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """The header `webhook-id`."""
        return self.headers["webhook-id"]

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def audit_id(self) -> int:
        """The entry that it shows."""
        return int(self.json["data"]["id"])


@dataclass
class Receiver:
    """What came, in its order. `gate`: held replies are sent when it is set.

    `refused`: how many of the next messages are answered with 500, by path.
    """

    url: str = ""
    messages: list[Message] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    refused: dict[str, int] = field(default_factory=dict)

    def at(self, path: str) -> list[Message]:
        """Return what came to a path."""
        return [one for one in list(self.messages) if one.path == path]


@contextlib.contextmanager
def webhook_receiver() -> Iterator[Receiver]:
    """Serve until the block is left.

    `/500` and `/redirect` answer so, `/hang` when the gate is set, `/drip` a byte of the reply now
    and then until it is set, `/large` with more than is read; every other path with 204.
    """
    made = Receiver()

    class Handler(Quiet):
        def do_POST(self) -> None:
            body = self.request_body()
            message = Message(self.path, self.request_headers(), body)
            made.messages.append(message)
            with contextlib.suppress(OSError):  # the sender does not wait for ever
                self._answer(message)

        def _answer(self, message: Message) -> None:
            if made.refused.get(self.path, 0) > 0:
                made.refused[self.path] -= 1
                self.send_error(500)
            elif self.path == "/redirect":
                self.send_response(302)
                self.send_header("Location", f"{made.url}/elsewhere")
                self.end_headers()
            elif self.path == "/500":
                self.send_error(500)
            elif self.path == "/drip":
                self.send_response(200)
                self.end_headers()
                while not made.gate.wait(0.05):
                    self.wfile.write(b".")
            elif self.path == "/large":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"." * 100_000)
            else:
                if self.path == "/hang":
                    made.gate.wait(60)
                self.send_response(204)
                self.end_headers()

    with loopback(Handler) as made.url:
        try:
            yield made
        finally:
            made.gate.set()
