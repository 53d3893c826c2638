"""The nouns `schedule` and `hook`, which start workflows, and `webhook`, which sends audit events.

Reference: features.md (Triggers, Schedules, Webhooks).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from callboard.cli.method_verbs import calling_verb
from callboard.cli.session import EXIT_USAGE, Session, noun, object_in, stop, verb

if TYPE_CHECKING:
    from callboard.client import Client

schedules = noun("schedule", "Workflows that start at due times.")
hooks = noun("hook", "Workflows that calls of a URL or events start.")


def _create_schedule(
    client: Client,
    name: str,
    cron: str,
    *,
    template: str | None = None,
    capability: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    paused: bool = False,
    **terms: Any,
) -> Any:
    if (template is None) == (capability is None):
        stop(EXIT_USAGE, "give either --template or --capability")
    workflow: Mapping[str, Any] = {"capability": capability, "input": inputs or {}}
    if template is not None:
        workflow = object_in(template, "a manifest")
    return client.create_schedule(name, cron, workflow, enabled=False if paused else None, **terms)


def _create_hook(client: Client, manifest: str) -> Any:
    template = object_in(manifest, "a manifest")
    trigger = template.get("trigger")
    if not isinstance(trigger, dict) or trigger.get("type") not in ("webhook", "event"):
        stop(EXIT_USAGE, "trigger.type of the manifest: expected webhook or event")
    return client.create_trigger(template)


calling_verb(
    schedules, "create", _create_schedule,
    "Create a schedule from a manifest, or from a capability and its inputs.", "name cron",
    options="template capability inputs timezone max_runs overlap_policy"
    " catch_up_window_ms jitter_ms daily_budget_credits paused",
)  # fmt: skip
calling_verb(
    hooks, "create", _create_hook,
    "Store a template whose runs are started by calls of its URL, or by audit events.", "manifest",
)  # fmt: skip
calling_verb(
    schedules, "list", "schedules", "List schedules, newest first.", options="status",
    columns="id name status cronExpression timezone nextRunAt runs",
)  # fmt: skip
calling_verb(
    hooks, "list", "triggers", "List triggers, newest first.", options="status",
    columns="id kind name status eventType runs refusals",
)  # fmt: skip
for _app, _word, _cause in (
    (schedules, "schedule", "dueAt"),
    (hooks, "trigger", "key"),
):
    calling_verb(_app, "show", _word, f"Show a {_word}.", _word)
    calling_verb(
        _app, "runs", "trigger_runs", f"List the runs of a {_word}, newest first.", _word,
        columns=f"createdAt status {_cause} workflowId workflowStatus reason",
    )  # fmt: skip
    _pause = f"Pause a {_word}: it starts no runs."
    calling_verb(_app, "pause", "change_trigger", _pause, _word, enabled=False)
    calling_verb(_app, "resume", "change_trigger", f"Resume a paused {_word}.", _word, enabled=True)
    calling_verb(_app, "delete", "delete_trigger", f"End a {_word}; its runs go on.", _word)
calling_verb(
    schedules, "trigger", "start_run", "Start a run of a schedule now; no due time moves.",
    "schedule",
)  # fmt: skip


@verb(schedules, "next")
def due_times(
    session: Session,
    schedule: Annotated[str, typer.Argument(help="The schedule's ID.", metavar="SCHEDULE")],
    n: Annotated[int, typer.Option("--n", help="Number of due times.", min=1, max=100)] = 10,
) -> None:
    """Show the next due times of a schedule."""
    reply = session.client.due_times(schedule, n=n)
    session.show_table(reply, ({"dueAt": one} for one in reply.next), ["dueAt"])


webhooks = noun("webhook", "Send audit events to a URL.")

calling_verb(
    webhooks, "create", "create_webhook", "Send events to a URL; the secret is shown only once.",
    "address", options="events! secret",
)  # fmt: skip
calling_verb(
    webhooks, "list", "webhooks", "List webhooks.", columns="id url events enabled pauseReason"
)
calling_verb(webhooks, "show", "webhook", "Show a webhook.", "webhook")
calling_verb(
    webhooks, "update", "change_webhook", "Change, pause or enable a webhook.", "webhook",
    options="new_url events enabled",
)  # fmt: skip
calling_verb(
    webhooks, "rotate", "rotate_webhook_secret",
    "Replace the secret; for 24 hours the previous one signs as well.", "webhook",
)  # fmt: skip
calling_verb(webhooks, "test", "test_webhook", "Send a test message.", "webhook")
calling_verb(
    webhooks, "deliveries", "deliveries", "List what was sent, newest first.", "webhook",
    options="status", columns="id eventType status attempts nextAttemptAt error",
)  # fmt: skip
calling_verb(
    webhooks, "redeliver", "redeliver", "Send a delivery again that has ended.", "webhook delivery"
)
calling_verb(webhooks, "delete", "delete_webhook", "Delete a webhook.", "webhook")
