"""The start of every service process: its settings, its log, its garbage collector.

Settings are arguments of actors, by name. A detached actor keeps its arguments and may be restarted
with them by newer or older code. Values by position would shift silently when a setting is added;
by name, an unknown setting is left out and a missing one takes its default. Each kind of process
has one log file in the deployment's folder, rotated by size. Decision messages-and-large-values.
"""

from __future__ import annotations

import gc
import json
import logging
import logging.handlers
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.ids import trace_id
from core.settings import Settings, known_settings, setting_names

LOG_BYTES_MAX = 16 * 1024 * 1024
LOG_FILES = 4
_WORKFLOW = "workflow=%s"
# Allocations before a young pass; young passes before a middle one; middle ones before a full one.
THRESHOLDS = (50_000, 20, 50)

log = logging.getLogger("callboard.settings")


class JsonLine(logging.Formatter):
    """One JSON object per event; of an event about a workflow with its id and its trace id.

    The trace id is the one that follows from the workflow's id: a caller's own is not known here.
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
        # Not searched in the event: that has words of others.
        if named and record.args and isinstance(record.args, tuple):
            workflow_id = str(record.args[before.count("%")])
            line |= {"workflowId": workflow_id, "traceId": trace_id(workflow_id)}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(settings: Settings, kind: str) -> None:
    """Send `callboard.*` log lines of this process to `logs/<kind>.jsonl` of the deployment."""
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
    """Return the settings by name."""
    return {name: getattr(settings, name) for name in setting_names()}


def parse_settings_argument(values: Mapping[str, object]) -> Settings:
    """Return an actor's settings; log and leave out those that this code does not know.

    Raises:
        SettingsError: values that are valid one by one contradict each other.
    """
    settings, left_out = known_settings(values)
    for reason in left_out:
        log.warning("setting not taken over: %s", reason)
    return settings


def collect_rarely() -> None:
    """Freeze the objects loaded so far and raise the thresholds of the garbage collector.

    An owner holds tens of thousands of long-lived objects and creates many short-lived ones, few of
    them cyclic. With the default thresholds, passes over live objects took a fifth of its time
    under bulk load.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
