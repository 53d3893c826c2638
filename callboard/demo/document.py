"""Provides the demonstration's document at an HTTP address, for the fetch agent.

If the document is given as an address, nothing is served: the agent reads this address. A file,
such as the article of the example, is served on loopback while the demonstration runs.
"""

from __future__ import annotations

import contextlib
import mimetypes
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextlib.contextmanager
def served(document: str) -> Iterator[str]:
    """Serve a document while the block runs; the block's value is the document's address.

    Args:
        document: an http(s) address, or the path of a readable file.

    Raises:
        OSError: the file cannot be read.
    """
    if document.startswith(("http://", "https://")):
        yield document
        return
    path = Path(document)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _serving(path.read_bytes(), _kind(path)))
    thread = threading.Thread(
        target=server.serve_forever, args=(0.05,), name="document", daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/{path.name}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _kind(path: Path) -> str:
    guessed = mimetypes.guess_type(path.name)[0] or "text/plain"
    return f"{guessed}; charset=utf-8"


def _serving(content: bytes, content_type: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: only the demonstration writes to the terminal."""

    return Handler
