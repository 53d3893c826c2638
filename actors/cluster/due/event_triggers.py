"""Starts a due run of an event trigger, or records why the run does not start.

The run's key contains the id of the audit entry, so an entry starts at most one run per trigger,
even if the delivery is repeated. Reference: features.md (Triggers).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from actors.cluster.due.event_follower import MINUTE_MS, RATE
from actors.cluster.due.run_starter import Cause, RunStarter, note_of, publish_of
from actors.routing.trigger_runs import run_of, workflow_limits
from core.json_text import read_json
from core.settings import Settings
from core.triggers.event_match import first_match
from ledger.features.triggers import event_row, trigger_row
from ledger.features.workflow_commands import TriggerRun
from ledger.reads.reader import LedgerReader, RowDict

# The longest chain of runs in which the event of one run starts the next.
DEPTH_MAX: Final = 5


class EventRuns:
    """Starts the runs of event triggers.

    Args:
        settings: the deployment's settings.
        reader: reads committed rows.
        starter: publishes runs, and records skipped and failed runs.
    """

    def __init__(self, settings: Settings, reader: LedgerReader, starter: RunStarter) -> None:
        self._limits = workflow_limits(settings)
        self._reader = reader
        self._starter = starter

    async def start(self, delivery: RowDict, *, now_ms: int) -> str | None:
        """Start a run, or record why it does not start.

        Args:
            delivery: the row of the due delivery.
            now_ms: the time, Unix milliseconds.

        Returns: why the delivery stays due; None if nothing is left to do for it.

        Raises:
            ServiceError: the outcome is unknown.
        """
        is_refused, trigger_id = delivery["error"] == RATE, delivery["address"]
        minute = delivery["created_ms"] // MINUTE_MS
        key = f"rate:{minute}" if is_refused else str(delivery["audit_id"])
        trigger = await trigger_row(self._reader, trigger_id)
        event = await event_row(self._reader, delivery["audit_id"], trigger_id=trigger_id, key=key)
        if trigger is None or event["is_decided"]:
            return None
        is_late = now_ms >= delivery["ends_ms"]
        if trigger["status"] == "paused" and not is_late and not is_refused:
            return "the trigger is paused"
        run = run_of(trigger, key, depth=min(event["depth"], DEPTH_MAX))
        if trigger["status"] != "active":
            cause: Cause | None = Cause(run, note_of(run, "skipped", "inactive"))
        elif is_refused:
            cause = Cause(run, note_of(run, "skipped", RATE))
        elif event["depth"] > DEPTH_MAX:
            cause = Cause(run, note_of(run, "skipped", "depth"))
        else:
            ids = self._starter.new_ids()
            cause = await asyncio.to_thread(self._publish, run, trigger, event, ids)
        if cause is not None and await self._starter.take([cause]):
            return RATE if is_refused else "it could not be started now"
        return None

    def _publish(
        self, run: TriggerRun, trigger: RowDict, entry: RowDict, ids: tuple[str, str]
    ) -> Cause | None:
        """Return the publish of a run, or the record of its failure; None if no event matches."""
        shown, config = read_json(entry["body"]), trigger["config"]
        wanted = config.get("filter") or {}
        event = first_match(shown["payload"]["events"], config["eventType"], wanted)
        if event is None:
            return None
        result: dict[str, Any] = {
            "id": shown["id"],
            "eventType": event["type"],
            "targetType": event["targetType"],
            "targetId": event["targetId"],
            "workflowId": entry["workflow_id"],
            "payload": event["payload"],
            "createdAt": shown["createdAt"],
        }
        cause = {"auditId": shown["id"], "result": result}
        return publish_of(trigger, run, cause, limits=self._limits, ids=ids)
