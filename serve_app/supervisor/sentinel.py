"""Ends a deployment's processes when their supervisor dies without a chance to do so itself.

Most of them end by the kernel's signal, but HAProxy and Ray's agents are grandchildren that no
signal ends: a HAProxy that survives `kill -9` of the supervisor would keep the port of the API. The
sentinel waits for the supervisor's end and then ends what carries the mark of *its* run; a new run
of the same deployment carries another one. Whose mark is overwritten is ended at once, while no new
run can have started any. `python -m serve_app.supervisor.sentinel PID MARK FOLDER`.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from serve_app.supervisor.processes import end_marked, marked_processes, send, wait_end


def main() -> int:
    """Wait for the end of process `argv[1]`, then end all others that carry mark `argv[2]`.

    Those that have overwritten it work in the folder `argv[3]`.
    """
    supervisor, mark, run_folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    wait_end([supervisor], None)
    send(marked_processes(mark, run_folder), signal.SIGKILL)
    end_marked(mark, grace_s=0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
