"""A process that ends in a turn that lasts leaves a trace of it, and no other does."""

from __future__ import annotations

import subprocess
import sys
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

asyncio.run(main())
"""


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
def test_only_an_end_in_a_turn_that_lasts_leaves_a_trace(
    tmp_path: Path, work: str, end: str, *, is_traced: bool
) -> None:
    path = tmp_path / "trace"
    # A turn that is not meant to be long may take a while on a busy machine.
    stuck_s = 0.5 if "stuck" in work else 60.0
    script = _SCRIPT.format(path=str(path), stuck_s=stuck_s, work=work, end=_END.format(end))
    ended = subprocess.run([sys.executable, "-c", script], check=False, timeout=60)
    assert ended.returncode < 0
    trace = path.read_text()
    assert bool(trace) is is_traced, trace
    if "stuck" in work and is_traced:
        assert "in main" in trace
