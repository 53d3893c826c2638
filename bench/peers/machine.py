"""The machine that a run is measured on: cores, memory, kernel, load, and how fast its disk is."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import psutil

_FLUSHES = 50


def describe_machine() -> dict[str, str]:
    """Return what decides the figures, as texts."""
    load = os.getloadavg()
    return {
        "cores": str(psutil.cpu_count()),
        "processor": _cpu_model(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "folder of all data": f"{tempfile.gettempdir()} ({_file_system(tempfile.gettempdir())})",
        "write and fdatasync of 4 KiB": f"p50 {flush_ms():.2f} ms",
        "load average at the start": " ".join(f"{one:.1f}" for one in load),
    }


def flush_ms() -> float:
    """Return the median time of a small write that is waited for, ms."""
    taken: list[float] = []
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(_FLUSHES):
            began = time.perf_counter()
            os.write(file.fileno(), b"x" * 4096)
            os.fdatasync(file.fileno())
            taken.append(1_000 * (time.perf_counter() - began))
    return statistics.median(taken)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: str) -> str:
    """Return the type of the file system that holds a folder: the longest mount point wins."""
    path = os.path.realpath(folder)
    best = ("", "unknown")
    for part in psutil.disk_partitions(all=True):
        point = part.mountpoint.rstrip("/")
        if (path + "/").startswith(point + "/") and len(point) >= len(best[0]):
            best = (point, part.fstype)
    return best[1]
