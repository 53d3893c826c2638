"""The start of every service process: settings, log, limit of open files, garbage collector.

Actors receive the settings as a dictionary by name. Ray stores the arguments of a detached actor,
and newer or older code may restart the actor with these arguments. Values by position would shift
silently when a setting is added. By name, an unknown setting is ignored, and a missing setting gets
its default. Each kind of process has one log file in the deployment's folder, rotated by size.
Decision messages-and-large-values.
"""

from __future__ import annotations

import gc
import json
import logging
import logging.handlers
import resource
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from core.ids import trace_id
from core.settings import Settings, known_settings, setting_names

LOG_BYTES_MAX = 16 * 1024 * 1024
LOG_FILES = 4
_WORKFLOW = "workflow=%s"
# Thresholds of Python's garbage collector: allocations before a young collection, young collections
# before a middle one, middle collections before a full one.
THRESHOLDS = (50_000, 20, 50)

log = logging.getLogger("callboard.settings")


class JsonLine(logging.Formatter):
    """Formats each event as one JSON object.

    An event about a workflow has the workflow's id and trace id. The trace id is derived from the
    workflow's id, because the trace id that a caller may have sent is not known here.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON; a stack trace becomes one of its members."""
        line: dict[str, Any] = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "event": record.getMessage(),
        }
        before, named, _ = str(record.msg).partition(_WORKFLOW)
        # The id is taken from the arguments. The message text may contain strings of callers.
        if named and record.args and isinstance(record.args, tuple):
            workflow_id = str(record.args[before.count("%")])
            line |= {"workflowId": workflow_id, "traceId": trace_id(workflow_id)}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(settings: Settings, kind: str) -> None:
    """Write the `callboard.*` log of this process to `logs/<kind>.jsonl` in the deployment folder.

    If the deployment has no folder, this changes nothing.
    """
    if not settings.home:
        return
    folder = Path(settings.home) / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(
        folder / f"{kind}.jsonl", maxBytes=LOG_BYTES_MAX, backupCount=LOG_FILES, encoding="utf-8"
    )
    handler.setFormatter(JsonLine())
    logger = logging.getLogger("callboard")
    logger.setLevel(logging.INFO)
    logger.handlers = [handler]
    logger.propagate = False


def settings_argument(settings: Settings) -> dict[str, object]:
    """Return the settings by name, as the argument of an actor."""
    return {name: getattr(settings, name) for name in setting_names()}


def parse_settings_argument(values: Mapping[str, object]) -> Settings:
    """Return an actor's settings; log and ignore the settings that this code does not know.

    Raises:
        SettingsError: two valid values contradict each other.
    """
    settings, left_out = known_settings(values)
    for reason in left_out:
        log.warning("setting ignored: %s", reason)
    return settings


def raise_file_limit() -> None:
    """Let this process open as many files as the system permits.

    The default is often 1,024. An owner may have 2,048 dispatches in flight, each with a socket.
    """
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a hard limit that the system has lowered since
        resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))


def collect_rarely() -> None:
    """Freeze the objects loaded so far and raise the thresholds of the garbage collector.

    An owner holds tens of thousands of long-lived objects. It creates many short-lived objects, of
    which few are cyclic. With the default thresholds, the garbage collector took a fifth of an
    owner's time under bulk load.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
