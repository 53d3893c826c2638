"""Pings a deployment's workflow owners repeatedly and prints a line of JSON per reply.

Run by the interpreter of the deployment's checkout, in its cluster's environment, so that replies
can be decoded: `python -P owner_watch.py`. Ends when standard input closes.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import ray

ASK_EVERY_S = 0.1
REPLY_WITHIN_S = 0.1


def main() -> None:
    """Ping until standard input closes."""
    ray.init(
        address="auto", namespace="callboard", log_to_driver=False, logging_level=logging.ERROR
    )
    from ray.util import list_named_actors

    def owners() -> list[str]:
        named = list_named_actors(all_namespaces=True)
        return sorted(one["name"] for one in named if "workflow" in one["name"])

    closed = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        closed.set()

    threading.Thread(target=listen, daemon=True).start()
    asked: dict[Any, str] = {}
    while not closed.wait(ASK_EVERY_S):
        # One that is gone is asked no more once Ray says so; the others do not wait for it.
        for name in set(owners()) - set(asked.values()):
            with suppress(ValueError):
                actor: Any = ray.get_actor(name, namespace="callboard")
                asked[actor.ping.remote()] = name
        if not asked:
            continue
        replied, _ = ray.wait([*asked], num_returns=len(asked), timeout=REPLY_WITHIN_S)
        for reference in replied:
            name = asked.pop(reference)
            with suppress(ray.exceptions.RayError):  # it is gone, starting, or busy
                print(json.dumps(line_of(name, ray.get(reference))), flush=True)


def line_of(name: str, reply: dict[str, Any]) -> dict[str, Any]:
    """Return what is told of an owner's reply."""
    runner, sent = reply.get("runner"), reply.get("dispatch")
    return {
        "s": time.monotonic(),
        "owner": name,
        "isReady": bool(reply.get("isReady", True)),
        "running": 0 if runner is None else runner.running,
        "sent": 0 if sent is None else sent.sent,
    }


if __name__ == "__main__":
    main()
