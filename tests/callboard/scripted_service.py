"""A service on loopback that answers from a script and keeps what it was asked."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.platform.loopback import Quiet, loopback


@dataclass(frozen=True)
class Asked:
    """One request as it arrived; header names in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Scripted:
    """One answer: status, JSON body or raw text, further headers.

    `is_cut`: the connection is closed before the end that was announced.
    """

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False


@dataclass
class ScriptedService:
    """The script left to answer, and the requests so far."""

    url: str = ""
    script: list[Scripted] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)


@contextlib.contextmanager
def scripted_service() -> Iterator[ScriptedService]:
    """Serve until the block is left; a request beyond the script gets 500."""
    service = ScriptedService()

    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            raw, headers = self.request_body(), self.request_headers()
            service.asked.append(
                Asked(self.command, self.path, headers, json.loads(raw) if raw else None)
            )
            answer = service.script.pop(0) if service.script else Scripted(500, "script is over")
            text = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.close_connection = answer.is_cut
            self.send_header("Content-Length", str(len(text.encode()) + answer.is_cut))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    with loopback(Handler) as service.url:
        yield service
