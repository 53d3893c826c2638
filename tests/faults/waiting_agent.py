"""An agent in a thread that answers no dispatch until it may, and counts them."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class WaitingAgent:
    """An agent that answers no dispatch until it may.

    `calls`: how often it got which node of which workflow. `open_now`: its dispatches that it has
    not answered; `open_max`: of these, the most at once.
    """

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.calls: Counter[str] = Counter()
        self.open_now = self.open_max = 0
        self._counting = threading.Lock()
        agent = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                agent._begin(f"{body['workflowId']}/{body['nodeId']}")
                agent.may_answer.wait()
                reply = {"eventId": body["eventId"], "status": "success", "result": {}}
                text = json.dumps(reply).encode()
                agent._end()  # before its caller can know, and send another
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_arguments: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> WaitingAgent:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_failure: object) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()

    def _begin(self, node: str) -> None:
        with self._counting:
            self.calls[node] += 1
            self.open_now += 1
            self.open_max = max(self.open_max, self.open_now)

    def _end(self) -> None:
        with self._counting:
            self.open_now -= 1
