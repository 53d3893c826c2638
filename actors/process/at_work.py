"""Records which workflow an owner's process is working on, for the process that replaces it.

A step of a workflow may end its owner process in ways that no exception handler sees. The step
never returns, and the process is replaced because it is silent; or the step crashes the process.
The next process would restore the workflow and end in the same way. Therefore the id of the
workflow at work is written to a memory-mapped file, which outlives the process.

When a process starts and finds a trace of its predecessor's last turn
(`actors/process/loop_watchdog.py`), it counts the predecessor's end against the workflow that was
at work. A process that is ended from outside leaves no trace, so no workflow is blamed. A workflow
with `ENDS_MAX` counted ends is quarantined instead of restored.
Decision state-machine-and-recovery.
"""

from __future__ import annotations

import logging
import mmap
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from core.json_text import NotJson, read_json, write_json

log = logging.getLogger("callboard.runner")

# A workflow is quarantined when this number of process ends was counted against it.
ENDS_MAX: Final = 3
# Maximum number of workflows with counted ends. Beyond it, the oldest of them is forgotten.
COUNTED_MAX: Final = 128
_NAME_BYTES: Final = 64
_FILE_BYTES: Final = 16 * 1024
_NO_WORKFLOW: Final = bytes(_NAME_BYTES)


class AtWork:
    """The workflow at work, and the number of process ends counted against each workflow.

    Args:
        path: the owner's file, created if it does not exist. None: nothing outlives the process.
        is_to_blame: whether the workflow at work ended the previous process.
    """

    def __init__(self, path: Path | None = None, *, is_to_blame: bool = False) -> None:
        self._memory: Any = bytearray(_FILE_BYTES) if path is None else _map(path)
        self._current = _NO_WORKFLOW
        self._ends = _read_ends(bytes(self._memory[_NAME_BYTES:_FILE_BYTES]))
        interrupted = bytes(self._memory[:_NAME_BYTES]).rstrip(b"\0")
        self._memory[:_NAME_BYTES] = _NO_WORKFLOW
        if interrupted and is_to_blame:
            name = interrupted.decode(errors="replace")
            self._ends[name] = self._ends.get(name, 0) + 1
            self._store()

    def begin(self, workflow_id: str) -> bytes:
        """Note that a workflow is at work; return the argument for `end`."""
        before = self._current
        self._put(workflow_id.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0"))
        return before

    def end(self, before: bytes) -> None:
        """Note that the work has ended; the workflow from before `begin` is at work again."""
        self._put(before)

    @property
    def current(self) -> str:
        """The id of the workflow at work, "" if there is none."""
        return self._current.rstrip(b"\0").decode(errors="replace")

    @types.coroutine
    def run(self, workflow_id: str, work: Coroutine[Any, Any, None]) -> Generator[Any, None, None]:
        """Run a coroutine; the workflow is at work while the coroutine runs, not while it waits."""
        resume: Callable[[], Any] = partial(work.send, None)
        while True:
            before = self.begin(workflow_id)
            try:
                awaited = resume()
            except StopIteration:
                return
            finally:
                self.end(before)
            try:
                yield awaited
            except BaseException as error:  # a cancellation: the coroutine must receive it
                resume = partial(work.throw, error)
            else:
                resume = partial(work.send, None)

    def is_poison(self, workflow_id: str) -> bool:
        """Say whether a workflow has `ENDS_MAX` counted ends and must not be restored."""
        return self._ends.get(workflow_id, 0) >= ENDS_MAX

    def forget(self, workflow_id: str) -> None:
        """Forget the counted ends of a workflow."""
        if self._ends.pop(workflow_id, None) is not None:
            self._store()

    def _put(self, name: bytes) -> None:
        self._current = name
        self._memory[:_NAME_BYTES] = name

    def _store(self) -> None:
        while len(self._ends) > COUNTED_MAX:
            del self._ends[next(iter(self._ends))]
        text = write_json(self._ends)
        self._memory[_NAME_BYTES:_FILE_BYTES] = text.ljust(_FILE_BYTES - _NAME_BYTES, b"\0")


class _OfWorkflow(Protocol):
    @property
    def workflow_id(self) -> str: ...


Run = TypeVar("Run", bound=_OfWorkflow)


class Guard(Generic[Run]):
    """Calls functions that work on a workflow, and handles their exceptions.

    An exception affects only the workflow whose function raised it.

    Args:
        at_work: records the workflow at work.
        on_raised: receives the run whose function raised.
    """

    def __init__(self, at_work: AtWork, on_raised: Callable[[Run], None]) -> None:
        self._at_work = at_work
        self._on_raised = on_raised
        self.raised = 0

    def __call__(
        self,
        run: Run,
        work: Callable[..., object],
        *arguments: Any,
        otherwise: Callable[[], object] | None = None,
    ) -> None:
        """Call `work` with the arguments.

        Args:
            run: the run that `work` works on.
            otherwise: called if `work` raised an exception, to answer the waiting request.
        """
        before = self._at_work.begin(run.workflow_id)
        try:
            work(*arguments)
        except Exception:  # the edge of one workflow: the other workflows continue
            self.raised += 1
            log.exception("workflow failed inside its owner workflow=%s", run.workflow_id)
            self._on_raised(run)
        else:
            otherwise = None
        finally:
            self._at_work.end(before)
        if otherwise is not None:
            otherwise()


def _map(path: Path) -> mmap.mmap:
    path.touch(mode=0o600)
    with path.open("r+b") as file:
        file.truncate(_FILE_BYTES)
        return mmap.mmap(file.fileno(), _FILE_BYTES)


def _read_ends(stored: bytes) -> dict[str, int]:
    """Return the stored counts; empty if they are incomplete, for example after a power failure."""
    try:
        read = read_json(stored.rstrip(b"\0") or b"{}")
    except NotJson:
        return {}
    return read if isinstance(read, dict) else {}
