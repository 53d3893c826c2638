"""Which workflow an owner's process is at work on, known to the process that replaces it.

A step of a workflow may end its owner in ways that no guard sees: it never returns, and the process
is killed as silent, or it takes the process with it. Its successor would restore the workflow and
end in the same way. So the workflow at work stands in a mapped file of the machine, which outlives
the process however that ends. A start that finds a trace of its predecessor's last turn
(`actors/process/loop_watchdog.py`) counts that end against the workflow which it interrupted; an
end from outside leaves no trace and counts against no workflow. What has `ENDS_MAX` is quarantined
instead of restored. Decision state-machine-and-recovery.
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

# Ends of their owner in which a workflow was at work, before it is quarantined.
ENDS_MAX: Final = 3
# Of these workflows the ends are counted; of more, the one that was counted first is forgotten.
COUNTED_MAX: Final = 128
_NAME_BYTES: Final = 64
_FILE_BYTES: Final = 16 * 1024
_NO_WORKFLOW: Final = bytes(_NAME_BYTES)


class AtWork:
    """The workflow at work, and in how many ends of the owner's process others were.

    Args:
        path: the owner's file, which is made when it is missing; None: nothing is kept.
        is_to_blame: whether the process before ended by what was at work in it.
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
        """Note that a workflow is at work; return what `end` is to be given."""
        before = self._current
        self._put(workflow_id.encode()[:_NAME_BYTES].ljust(_NAME_BYTES, b"\0"))
        return before

    def end(self, before: bytes) -> None:
        """Note that its work has ended, and that of the one before goes on."""
        self._put(before)

    @property
    def current(self) -> str:
        """The workflow at work, "" when there is none."""
        return self._current.rstrip(b"\0").decode(errors="replace")

    @types.coroutine
    def run(self, workflow_id: str, work: Coroutine[Any, Any, None]) -> Generator[Any, None, None]:
        """Run a coroutine whose workflow is at work whenever it runs, and not while it waits."""
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
            except BaseException as error:  # a cancellation, which is the coroutine's to receive
                resume = partial(work.throw, error)
            else:
                resume = partial(work.send, None)

    def is_poison(self, workflow_id: str) -> bool:
        """Say whether a workflow was at work in so many ends that it is not to be restored."""
        return self._ends.get(workflow_id, 0) >= ENDS_MAX

    def forget(self, workflow_id: str) -> None:
        """Forget the ends in which a workflow was at work."""
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
    """Calls what works on a workflow; an exception stops here and ends the work on it alone.

    Args:
        at_work: notes whose work it is.
        on_raised: receives the run whose work raised.
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
        """Call `work`.

        Args:
            otherwise: answers the request that the work was for, when it raised.
        """
        before = self._at_work.begin(run.workflow_id)
        try:
            work(*arguments)
        except Exception:  # the edge of one workflow: the others go on
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
    """Return the stored counts; none where they were cut off by the end of a machine."""
    try:
        read = read_json(stored.rstrip(b"\0") or b"{}")
    except NotJson:
        return {}
    return read if isinstance(read, dict) else {}
