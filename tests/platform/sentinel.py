"""Ends the deployments that a test process has left running when it ended, however it ended.

`python -m tests.platform.sentinel`; standard input gives their homes, a line each, and ends with
the test process.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.platform.deployments import processes_below, supervisor

# An `up` that is on its way is no deployment yet; what else names a home, such as a reader of its
# logs, is not to keep this process for ever.
TRIES = 30


def main() -> None:
    """End what is left of each deployment once standard input has ended."""
    homes = [Path(line.rstrip("\n")) for line in sys.stdin]
    for home in homes:
        for _ in range(TRIES):
            if processes_below(home):
                supervisor("down", "--home", str(home))


if __name__ == "__main__":
    main()
