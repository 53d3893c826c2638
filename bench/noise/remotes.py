"""Processes of a benchmark that execute orders, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from typing import Any

REPLY_WITHIN_S = 600.0
END_WITHIN_S = 5.0


class Remote:
    """A process started by `remote`.

    Args:
        function: called in the process with its end of a pipe, then the arguments.
    """

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        context = get_context("spawn")
        self._orders, theirs = context.Pipe()
        self._process = context.Process(target=function, args=(theirs, *arguments), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        """Return the process's id."""
        assert self._process.pid is not None
        return self._process.pid

    def send_order(self, order: Any) -> None:
        """Send an order."""
        self._orders.send(order)

    def reply(self) -> Any:
        """Return the reply to the last order.

        Raises:
            SystemExit: the order failed, or timed out.
        """
        if not self._orders.poll(REPLY_WITHIN_S):
            raise SystemExit(f"no reply of a process of the measurement in {REPLY_WITHIN_S:.0f} s")
        reply = self._orders.recv()
        if isinstance(reply, FailedOrder):
            raise SystemExit(reply.text)
        return reply

    def has_replied(self, within_s: float) -> bool:
        """Wait for the reply to the last order; return whether it has arrived."""
        return bool(self._orders.poll(within_s))

    def ask(self, order: Any) -> Any:
        """Send an order and return its reply."""
        self.send_order(order)
        return self.reply()

    def end(self) -> None:
        """End the process: by the order None, or by a signal when it does not respond."""
        with suppress(OSError):
            self.send_order(None)
        self._process.join(END_WITHIN_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class FailedOrder:
    """The reply to an order that failed."""

    def __init__(self, text: str) -> None:
        self.text = text


@contextmanager
def remote(function: Callable[..., None], *arguments: Any) -> Iterator[Remote]:
    """Run a process for the length of the block."""
    made = Remote(function, *arguments)
    try:
        yield made
    finally:
        made.end()
