"""Ends a deployment's processes when their supervisor dies without a chance to do so itself.

Most of them end by the kernel's signal, but HAProxy and Ray's agents are grandchildren that nobody
ties: a HAProxy that survives `kill -9` of the supervisor would keep the port of the API. The
sentinel waits for the supervisor's end and then ends what carries the mark of *its* run; a new run
of the same deployment carries another one. `python -m serve_app.sentinel PID MARK`.
"""

from __future__ import annotations

import sys

from serve_app.processes import end_marked, wait_end


def main() -> int:
    """Wait for the end of process `argv[1]`, then end all others that carry mark `argv[2]`."""
    supervisor, mark = int(sys.argv[1]), sys.argv[2]
    wait_end([supervisor], None)
    end_marked(mark, grace_s=0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
