"""The command lines of the supervisor, a program of its own. Part of `callboard-server`."""

from __future__ import annotations

import sys
from pathlib import Path


def supervisor(*arguments: str) -> list[str]:
    """Return the command that runs the supervisor with these arguments."""
    return [sys.executable, "-m", "serve_app.supervisor", *arguments]


def up_arguments(
    home: Path, *, port: int | None, host: str | None, region: str | None, detach: bool
) -> list[str]:
    """Return the supervisor's arguments for `up`."""
    arguments = ["up", "--home", str(home)]
    for name, value in (("--port", port), ("--host", host), ("--region", region)):
        if value is not None:
            arguments += [name, str(value)]
    return [*arguments, "--detach"] if detach else arguments
