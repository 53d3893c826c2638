"""Log files: one per kind of process in the deployment's folder, rotated by size."""

from __future__ import annotations

import json
import logging
import logging.handlers
from pathlib import Path
from typing import Any

from core.ids import trace_id
from core.settings import Settings

LOG_BYTES_MAX = 16 * 1024 * 1024
LOG_FILES = 4
_WORKFLOW = "workflow=%s"


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
