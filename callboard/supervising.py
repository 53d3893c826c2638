"""The command lines of the supervisor, a program of its own. Part of `callboard-server`."""

from __future__ import annotations

import sys


def supervisor(*arguments: str, **options: object) -> list[str]:
    """Return the command that runs the supervisor.

    Args:
        arguments: the verb, and words as they are.
        options: of the verb; None and False are those that are not given.
    """
    words = [sys.executable, "-m", "serve_app.supervisor", *arguments]
    for name, value in options.items():
        if value is not None and value is not False:
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
    return words
