"""The event loop of one simulated process, in virtual time.

The real coroutines of `actors/` run on it. Every callback is one turn; the code that runs in a turn
is charged virtual CPU time (`costs.py`), the loop is busy for so long, and a turn that costs more
than `TURN_US_MAX` is a violation. A dead loop runs nothing any more. issue 8, mechanism 3.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tests.simulation.skewed_clock import MachineClock, VirtualClock
from tests.simulation.violation import Violation, require

Result = TypeVar("Result")

TURN_US_MAX = 10_000
# So much virtual time passes within one callback of the world's clock, at most.
STRETCH_US = 1_000


class InjectedFault(RuntimeError):
    """A defect that the world plants: code that raises where it is not expected to."""


class VirtualLoop(asyncio.AbstractEventLoop):
    """The loop of one process.

    Args:
        clock: the world's, or that of the process's machine.
        name: of the process, for messages.
    """

    def __init__(self, clock: VirtualClock | MachineClock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._ready: deque[asyncio.Handle] = deque()
        self._is_woken = False
        self._charged_us = 0  # in the stretch that runs now
        self._free_at_us = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_alive = True
        self.is_frozen = False
        self.slowness = 1  # by so much all takes longer, on a machine that is overloaded
        self.turns = 0
        self.turn_us_max = 0
        self.swallowed = 0
        self._unforeseen: list[str] = []

    def __repr__(self) -> str:
        return f"<VirtualLoop {self._name} ready={len(self._ready)} turns={self.turns}>"

    # -- what the world does to it ----------------------------------------------------------------

    def charge(self, us: int) -> None:
        """Let the turn that runs now take so many microseconds longer."""
        self._charged_us += us

    def die(self) -> None:
        """Run nothing any more: whatever waits or is under way goes no further."""
        self.is_alive = False
        self._ready.clear()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Be the running loop, for what has to be made on it."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(before)

    def freeze(self) -> None:
        """Run nothing until `thaw`, as a process that was sent SIGSTOP."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Go on where it was."""
        self.is_frozen = False
        if self._ready:
            self._wake()

    @property
    def is_suspended(self) -> bool:
        """Whether the process's machine is suspended: what is sent to it is lost."""
        return isinstance(self._clock, MachineClock) and self._clock.is_suspended

    def discard_tasks(self) -> None:
        """Close the coroutines of a dead process, so that none is collected in another run."""
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            coroutine.close()
        self._tasks.clear()

    # -- what asyncio asks of a loop --------------------------------------------------------------

    def time(self) -> float:
        """Return the virtual time in seconds, what this turn has cost so far included."""
        return (self._clock.now_us + self._charged_us) / 1_000_000

    def monotonic_ns(self) -> int:
        """Return the virtual time in nanoseconds."""
        return (self._clock.now_us + self._charged_us) * 1_000

    def call_soon(
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Run a callback in one of the next turns."""
        handle = asyncio.Handle(callback, args, self, context)
        self._add(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback after a delay in seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run a callback at a time of this loop, in seconds."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._clock.call_at_us(round(when * 1_000_000), self._add, handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Result],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Result]:
        """Run a coroutine; an unforeseen exception ends the simulation."""
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note what a real loop would only log: an exception that no code has asked for."""
        error = context.get("exception")
        if isinstance(error, InjectedFault):
            self.swallowed += 1
        else:
            self._unforeseen.append(f"{context.get('message')}: {error!r}")

    def get_debug(self) -> bool:
        """Say that asyncio need not watch itself."""
        return False

    def is_running(self) -> bool:
        """Say that the process runs."""
        return self.is_alive

    def is_closed(self) -> bool:
        """Say whether the process is dead."""
        return not self.is_alive

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled handle is skipped when its time comes."""

    # -- turns ------------------------------------------------------------------------------------

    def _add(self, handle: asyncio.Handle) -> None:
        if self.is_alive and not handle._cancelled:  # type: ignore[attr-defined]
            self._ready.append(handle)
            if not self._is_woken:
                self._wake()

    def _wake(self) -> None:
        self._is_woken = True
        self._clock.call_at_us(self._free_at_us, self._run)

    def _run(self) -> None:
        """Take turns until nothing is ready or a stretch of virtual time is over."""
        began = events._get_running_loop()
        events._set_running_loop(self)
        self._charged_us = 0
        try:
            while self._ready and self._charged_us < STRETCH_US and not self.is_frozen:
                self._turn(self._ready.popleft())
        finally:
            events._set_running_loop(began)
            self._is_woken = False
            self._free_at_us = self._clock.now_us + self._charged_us * self.slowness
            self._charged_us = 0
        require(not self._unforeseen, "unforeseen in", self._name, self._unforeseen)
        if self._ready and not self.is_frozen:
            self._wake()

    def _turn(self, handle: asyncio.Handle) -> None:
        if handle._cancelled:  # type: ignore[attr-defined]
            return
        before_us = self._charged_us
        try:
            handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
        except InjectedFault:
            self.swallowed += 1  # a real loop logs it and goes on
        except Exception as error:
            raise Violation(f"a callback raised in {self._name}: {error!r}") from error
        took_us = self._charged_us - before_us
        self.turns += 1
        self.turn_us_max = max(self.turn_us_max, took_us)
        is_short = took_us <= TURN_US_MAX
        require(is_short, "a loop turn of", took_us, "us in", self._name, handle)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        # Not `exception()`, which would say that it has been asked for.
        error = task._exception  # type: ignore[attr-defined]
        if isinstance(error, BaseException) and not isinstance(
            error, Exception | asyncio.CancelledError
        ):
            raise error


def raise_unforeseen(task: asyncio.Task[None]) -> None:
    """Raise what a task has ended with.

    A loop hears of that only when nothing holds the task any more, and the run would go on.
    """
    if not task.cancelled():
        task.result()
