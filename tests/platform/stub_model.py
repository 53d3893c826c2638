"""A model for tests: a real HTTP server on loopback that answers chat completions."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.platform.loopback import Quiet, loopback

Json = dict[str, Any]
# For a broken program, not for a slow machine.
PATIENCE_S = 60.0


@dataclass(frozen=True)
class RawReply:
    """A reply of any form."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


Answer = Callable[[Json], str | RawReply]


@dataclass
class StubModel:
    """Where it is, what it was asked, and who left before its answer."""

    url: str = ""
    asked: list[Json] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    left: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def wait_asked(self) -> None:
        """Return when one more question has arrived."""
        assert self.arrived.acquire(timeout=PATIENCE_S), "no question arrived"

    def wait_left(self) -> None:
        """Return when one more asker has left before the answer."""
        assert self.left.acquire(timeout=PATIENCE_S), "no caller left"


def completion(text: str) -> RawReply:
    """Return the reply whose answer is a text."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    body = {"id": "c1", "object": "chat.completion", "choices": [choice], "usage": {}}
    return RawReply(body=json.dumps(body).encode())


@contextlib.contextmanager
def stub_model(answer: Answer | None, *, port: int = 0) -> Iterator[StubModel]:
    """Serve until the block is left.

    Args:
        answer: what it answers to a request's body; None: nothing, until its asker leaves.
        port: 0: any.
    """
    model = StubModel()

    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.request_body())
            model.asked.append(body)
            model.paths.append(self.path)
            model.headers.append(self.request_headers())
            model.arrived.release()
            if answer is None:
                self.connection.settimeout(PATIENCE_S)
                with contextlib.suppress(OSError):
                    if self.connection.recv(1) == b"":
                        model.left.release()
                self.close_connection = True
                return
            found = answer(body)
            reply = completion(found) if isinstance(found, str) else found
            # The asker may have read enough.
            with contextlib.suppress(OSError):
                self.send_response(reply.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(reply.body)))
                for name, text in reply.headers:
                    self.send_header(name, text)
                self.end_headers()
                self.wfile.write(reply.body)

        do_GET = do_POST

    with loopback(Handler, port=port) as url:
        model.url = f"{url}/v1"
        yield model
