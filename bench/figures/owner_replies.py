"""The replies of a deployment's workflow owners to pings, while a benchmark runs."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.checkouts import Checkout
from bench.figures.process_usage import owner_of

PASSED_ON = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR")
FIRST_REPLY_WITHIN_S = 120.0


class OwnerReplies:
    """The owners' ping replies, read by a process of the checkout."""

    def __init__(self, checkout: Checkout, home: Path) -> None:
        owner = owner_of(home)
        assert owner is not None, "a deployment that is up has an owner"
        theirs = owner.environ()
        environment = {**os.environ, **{n: theirs[n] for n in PASSED_ON if n in theirs}}
        environment["PYTHONPATH"] = str(checkout.root)
        script = Path(__file__).parent / "owner_watch.py"
        self._process = subprocess.Popen(
            [str(checkout.python), "-P", str(script)],
            cwd=checkout.root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._replies.put(json.loads(line))

    def wait_first(self) -> None:
        """Return after the owner's first reply.

        Raises:
            SystemExit: there was no reply in time.
        """
        try:
            self._replies.get(timeout=FIRST_REPLY_WITHIN_S)
        except queue.Empty:
            raise SystemExit(f"no reply of the owner in {FIRST_REPLY_WITHIN_S:.0f} s") from None

    def iterate_replies(self) -> Iterator[dict[str, Any]]:
        """Yield the replies since the last call."""
        while not self._replies.empty():
            yield self._replies.get()

    def end(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)


@contextmanager
def owner_replies(checkout: Checkout, home: Path) -> Iterator[OwnerReplies]:
    """Ping the owner for the length of the block."""
    replies = OwnerReplies(checkout, home)
    try:
        replies.wait_first()
        yield replies
    finally:
        replies.end()
