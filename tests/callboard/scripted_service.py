"""A service on loopback that answers from a script and keeps what it was asked."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


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

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
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

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    service.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
