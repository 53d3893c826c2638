"""An agent for contract tests: a real HTTP server on loopback that answers as it is told."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.platform.loopback import Quiet, loopback

Json = dict[str, Any]
# A reply is a status and a body; an Answer sees the dispatch.
Answer = Callable[[Json], tuple[int, Json]]
# For a broken program, not for a slow machine.
PATIENCE_S = 60.0


@dataclass
class StubAgent:
    """The agent's address, what it was asked, and the gate that holds `held` answers back."""

    url: str = ""
    dispatches: list[Json] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    cancels: list[Json] = field(default_factory=list)
    cancel_signatures: list[str | None] = field(default_factory=list)
    cancelled: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    gate: threading.Event = field(default_factory=threading.Event)

    def wait_dispatched(self, timeout_s: float = PATIENCE_S) -> None:
        """Return when one more dispatch has arrived."""
        assert self.arrived.acquire(timeout=timeout_s), "no dispatch arrived"

    def wait_cancelled(self, timeout_s: float = PATIENCE_S) -> None:
        """Return when one more cancellation notice has arrived."""
        assert self.cancelled.acquire(timeout=timeout_s), "no cancellation notice arrived"


def succeed(dispatch: Json) -> tuple[int, Json]:
    """Echo the inputs and parents as the result."""
    result = {"inputs": dispatch["inputs"], "parents": dispatch["parents"]}
    return 200, {
        "eventId": dispatch["eventId"],
        "status": "success",
        "result": result,
        "metrics": {"latency_ms": 7},
    }


def refuse(dispatch: Json) -> tuple[int, Json]:
    """Fail for good."""
    return 400, {"eventId": dispatch["eventId"], "status": "error", "error": "cannot do this"}


@contextlib.contextmanager
def stub_agent(answer: Answer = succeed, *, is_held: bool = False) -> Iterator[StubAgent]:
    """Serve until the block is left.

    Args:
        answer: what it replies to a dispatch.
        is_held: replies wait until `gate` is set.
    """
    agent = StubAgent()

    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200, {"status": "healthy"})

        def do_POST(self) -> None:
            raw = self.request_body()
            body = json.loads(raw)
            if self.path.endswith("/cancel"):
                agent.cancels.append({**body, "raw": raw})
                agent.cancel_signatures.append(self.headers.get("x-callboard-signature"))
                agent.cancelled.release()
                self._send(200, {"ok": True})
                return
            agent.paths.append(self.path)
            agent.dispatches.append(body)
            agent.headers.append(self.request_headers())
            agent.arrived.release()
            if is_held:
                agent.gate.wait(PATIENCE_S)
            self._send(*answer(body))

        def _send(self, status: int, body: Json) -> None:
            retry_after = body.pop("__retry_after", None)
            encoded = json.dumps(body).encode()
            # The coordinator may have left: a cancelled dispatch is not read to its end.
            with contextlib.suppress(ConnectionError):
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                if retry_after is not None:
                    self.send_header("Retry-After", str(retry_after))
                self.send_header("Content-Length", str(len(encoded)))
                self.end_headers()
                self.wfile.write(encoded)

    with loopback(Handler) as agent.url:
        try:
            yield agent
        finally:
            agent.gate.set()
