"""Log files: one per kind of process in the deployment's folder, rotated by size."""

from __future__ import annotations

import json
import logging
import logging.handlers
from pathlib import Path

from core.settings import Settings

LOG_BYTES_MAX = 16 * 1024 * 1024
LOG_FILES = 4


class JsonLine(logging.Formatter):
    """One JSON object per event."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON; a stack trace becomes one of its members."""
        line = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "event": record.getMessage(),
        }
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
