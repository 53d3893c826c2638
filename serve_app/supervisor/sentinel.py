"""Ends a deployment's processes after its supervisor was killed.

When a supervisor ends, the kernel also ends its children. It does not end HAProxy and Ray's agents,
which are grandchildren. A surviving HAProxy would keep the port of the API in use. So the sentinel
waits for the supervisor's end, and then ends the processes with the mark of the supervisor's run. A
new run of the same deployment has another mark. The run of a process with an overwritten mark is
unknown. So such processes are ended only once, at the beginning, before a new run can start any.
Usage: `python -m serve_app.supervisor.sentinel PID MARK FOLDER`
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from serve_app.supervisor.processes import end_marked, marked_processes, send, wait_end


def main() -> int:
    """Wait for the end of process `argv[1]`, then end all processes with the mark `argv[2]`.

    `argv[3]` is the run folder, by which processes with an overwritten mark are found.
    """
    supervisor, mark, run_folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    wait_end([supervisor], None)
    send(marked_processes(mark, run_folder), signal.SIGKILL)
    end_marked(mark, grace_s=0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
