"""A process that ends in a turn that lasts leaves a trace of it, and no other does."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

# Ends its process as an operator would, or a segmentation fault, or the watch of silent owners.
_END = "import os, signal; os.kill(os.getpid(), signal.SIG{})"
_SCRIPT = """
import asyncio, signal
from pathlib import Path
from actors.process.loop_watchdog import TurnTrace, TurnWatchdog

path = Path({path!r})
trace = TurnTrace(path, stuck_s={stuck_s})
trace.start()

def stuck():
    while "in main" not in path.read_text():
        pass

async def main():
    TurnWatchdog("test", trace=trace).start()
    {work}
    {end}

{run}
"""
# An actor's loop runs beside the main thread, where Ray's own loop waits.
_RUNS = {
    "main thread": "asyncio.run(main())",
    "another thread": """import threading
threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
threading.Event().wait()""",
}


@pytest.mark.parametrize(
    ("work", "end", "is_traced"),
    [
        ("stuck()", "KILL", True),
        ("await asyncio.sleep(0)", "KILL", False),
        ("await asyncio.sleep(0)", "SEGV", True),
        ("stuck()\n    while path.stat().st_size:\n        await asyncio.sleep(0)", "KILL", False),
    ],
    ids=["stuck", "ended from outside", "crashed", "stuck and recovered"],
)
@pytest.mark.parametrize("thread", _RUNS)
def test_only_an_end_in_a_turn_that_lasts_leaves_a_trace(
    tmp_path: Path, work: str, end: str, thread: str, *, is_traced: bool
) -> None:
    path = tmp_path / "trace"
    # A turn that is not meant to be long may take a while on a busy machine.
    stuck_s = 0.5 if "stuck" in work else 60.0
    script = _SCRIPT.format(
        path=str(path),
        stuck_s=stuck_s,
        work=work,
        end=_END.format(end),
        run=_RUNS[thread],
    )
    ended = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert ended.returncode < 0
    trace = path.read_text()
    assert bool(trace) is is_traced, trace
    if "stuck" in work and is_traced:
        assert "in main" in trace


@pytest.mark.parametrize("thread", _RUNS)
def test_a_call_that_never_returns_and_holds_the_interpreter_leaves_a_trace(
    tmp_path: Path, thread: str
) -> None:
    path = tmp_path / "trace"
    work = 'import re; re.match(r"(a+)+$", "a" * 64 + "b")'
    script = _SCRIPT.format(path=str(path), stuck_s=0.5, work=work, end="", run=_RUNS[thread])
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        deadline_s = time.monotonic() + 60
        while not (path.exists() and "in main" in path.read_text()):
            assert time.monotonic() < deadline_s
    finally:
        process.kill()
        process.wait()
    assert "in main" in path.read_text()


def test_the_end_of_a_turn_is_noted_without_a_wait(tmp_path: Path) -> None:
    """A thread was ended and another started at each tick: milliseconds beside busy processes."""
    script = f"""
import resource
from pathlib import Path
from actors.process.loop_watchdog import TurnTrace

trace = TurnTrace(Path({str(tmp_path / "trace")!r}))
trace.start()
before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
for _ in range(100):
    trace.note_turn()
print(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)
"""
    ended = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    assert int(ended.stdout) < 10
