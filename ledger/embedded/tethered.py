"""Runs a child process that ends with its owner, even if the owner is killed with `kill -9`.

Run as a script with `python -I -S`, this file prepares the process and then becomes the command. It
is a script, so that no Python code runs between fork and exec in an owner with threads. Steps:

1. drop root if requested: groups, group, user;
2. ask the kernel for a signal when the owner dies (after 1, because a change of user cancels the
   request);
3. check that the owner is still alive: it may have died before 2;
4. become the command.

The kernel watches the *thread* of the owner that started this process. So start the process from a
thread that lives as long as the owner. This file knows nothing of Postgres or Ray.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def tethered_command(
    command: Sequence[str],
    *,
    end_signal: signal.Signals,
    user: tuple[int, int] | None = None,
) -> list[str]:
    """Return the command line that runs `command` tethered to the calling process.

    Args:
        command: program and arguments; the program is a path.
        end_signal: the signal that the command gets when its owner dies.
        user: (uid, gid) as which the command runs; None: the caller's.
    """
    identity = f"{user[0]}:{user[1]}" if user else "-"
    owner, number = str(os.getpid()), str(int(end_signal))
    return [sys.executable, "-I", "-S", __file__, owner, number, identity, *command]


def capabilities() -> int:
    """Return the effective capabilities of this process as a bit mask."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("CapEff:"))
    return int(line.split()[1], 16)


def _checked(outcome: int, what: str) -> None:
    if outcome != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"could not {what}: {os.strerror(number)}")


def _main(argv: Sequence[str]) -> None:
    owner, number, identity, *command = argv
    if identity != "-":
        uid, gid = (int(part) for part in identity.split(":"))
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0), "tie the child to its owner")
    if os.getppid() != int(owner):
        sys.exit(0)
    # The caller may have blocked signals; the command must not inherit that.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execv(command[0], command)


if __name__ == "__main__":
    try:
        _main(sys.argv[1:])
    except OSError as failure:
        sys.exit(f"{sys.argv[4]}: {failure}")
