"""A child process that ends with its owner, even when the owner is killed with `kill -9`.

Run as a script with `python -I -S`, it prepares itself and then becomes the command. It exists so
that nothing runs between fork and exec in a process that has threads. In order:

1. drop root if asked: groups, group, user; on request keep one capability, CAP_DAC_READ_SEARCH,
   with which a program or folder below a private folder (such as /root, 0700) can be reached;
2. ask the kernel for a signal when the owner dies (after 1: a change of user forgets the request);
3. check that the owner still lives: it may have died before 2;
4. become the command.

The kernel watches the *thread* that started this process, so start it from one that lives as long
as the owner. This file knows nothing of Postgres or Ray.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_PR_GET_SECUREBITS, _PR_SET_SECUREBITS = 27, 28
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAP_DAC_READ_SEARCH, _CAP_SETPCAP = 2, 8
_CAPABILITY_VERSION_3 = 0x20080522


def tethered_command(
    command: Sequence[str],
    *,
    end_signal: signal.Signals,
    user: tuple[int, int] | None = None,
    keep_search: bool = False,
) -> list[str]:
    """Return the command line that runs `command` tethered to the calling process.

    Args:
        command: program and arguments; the program is a path.
        end_signal: what the command gets when its owner dies.
        user: (uid, gid) to become; None keeps the caller's.
        keep_search: keep CAP_DAC_READ_SEARCH through the change of user; see `may_keep_search`.
    """
    identity = f"{user[0]}:{user[1]}" if user else "-"
    search = "search" if keep_search else "-"
    owner, number = str(os.getpid()), str(int(end_signal))
    return [sys.executable, "-I", "-S", __file__, owner, number, identity, search, *command]


def capabilities() -> int:
    """Return the effective capabilities of this process, a bit for each."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("CapEff:"))
    return int(line.split()[1], 16)


def may_keep_search() -> bool:
    """Say whether this process can pass CAP_DAC_READ_SEARCH on; a container often cannot."""
    needed = 1 << _CAP_DAC_READ_SEARCH | 1 << _CAP_SETPCAP
    return capabilities() & needed == needed


def _become(uid: int, gid: int, *, keep_search: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if keep_search:
        # Without this bit the change of user clears the capabilities, and access(2), with which
        # Postgres checks its own programs, ignores those of a process without root.
        bits = libc.prctl(_PR_GET_SECUREBITS, 0, 0, 0, 0) | _SECBIT_NO_SETUID_FIXUP
        _checked(libc.prctl(_PR_SET_SECUREBITS, bits, 0, 0, 0), "keep capabilities")
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if not keep_search:
        return
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    bit = 1 << _CAP_DAC_READ_SEARCH
    # effective, permitted, inheritable of the first 32 capabilities, then of the others.
    sets = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
    _checked(libc.capset(header, sets), "keep CAP_DAC_READ_SEARCH alone")
    raised = libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_READ_SEARCH, 0, 0)
    _checked(raised, "pass CAP_DAC_READ_SEARCH on")


def _checked(outcome: int, what: str) -> None:
    if outcome != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"could not {what}: {os.strerror(number)}")


def _main(argv: Sequence[str]) -> None:
    owner, number, identity, search, *command = argv
    if identity != "-":
        uid, gid = (int(part) for part in identity.split(":"))
        _become(uid, gid, keep_search=search == "search")
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0), "tie the child to its owner")
    if os.getppid() != int(owner):
        sys.exit(0)
    # A caller may run with signals blocked or ignored; its child must not inherit that.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execv(command[0], command)


if __name__ == "__main__":
    try:
        _main(sys.argv[1:])
    except OSError as failure:
        sys.exit(f"{sys.argv[5]}: {failure}")
