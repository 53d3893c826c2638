"""An HTTP server on loopback for what tests put in the place of agents, peers and receivers."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Quiet(BaseHTTPRequestHandler):
    """A handler that writes no log."""

    def log_message(self, *_: object) -> None:
        """Say nothing: what came is recorded."""

    def request_headers(self) -> dict[str, str]:
        """Return the headers of the request, names in lower case."""
        return {name.lower(): value for name, value in self.headers.items()}

    def request_body(self) -> bytes:
        """Read the body of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))


class _Server(ThreadingHTTPServer):
    """Takes all connections that come at once; one turned away would come again after a second."""

    daemon_threads = True
    request_queue_size = 1_024
    # A port that settings name may have been served a moment ago.
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what a handler raises, unless its client has left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def loopback(handler: type[BaseHTTPRequestHandler], *, port: int = 0) -> Iterator[str]:
    """Serve until the block is left; yield the URL."""
    with _Server(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
