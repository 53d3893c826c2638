"""Pings a deployment's workflow owner repeatedly and prints a line of JSON per reply.

Run by the interpreter of the deployment's checkout, in its cluster's environment, so that replies
can be decoded: `python -P owner_watch.py`. Ends when standard input closes.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from typing import Any

import ray

ASK_EVERY_S = 0.1
REPLY_WITHIN_S = 1.0


def main() -> None:
    """Ping until standard input closes."""
    ray.init(
        address="auto", namespace="callboard", log_to_driver=False, logging_level=logging.ERROR
    )
    from ray.util import list_named_actors

    names = [one["name"] for one in list_named_actors(all_namespaces=True)]
    (name,) = (name for name in names if "workflow" in name)
    actor: Any = ray.get_actor(name, namespace="callboard")
    closed = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        closed.set()

    threading.Thread(target=listen, daemon=True).start()
    while not closed.wait(ASK_EVERY_S):
        try:
            reply = ray.get(actor.ping.remote(), timeout=REPLY_WITHIN_S)
        except ray.exceptions.RayError:  # it is gone, starting, or busy
            continue
        runner = reply.get("runner")
        running = 0 if runner is None else runner.running
        is_ready = bool(reply.get("isReady", True))
        line = {"s": time.monotonic(), "isReady": is_ready, "running": running}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
