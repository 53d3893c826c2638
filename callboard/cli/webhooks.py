"""`webhook`: where audit events are sent. Reference: features.md (Webhooks)."""

from __future__ import annotations

import typer

from callboard.cli.calling import calling_verb

app = typer.Typer(help="Send audit events to a URL.", no_args_is_help=True)

calling_verb(
    app, "create", "create_webhook",
    "Send events to a URL; the secret is shown only once.", "address", options="events! secret",
)  # fmt: skip
calling_verb(
    app, "list", "webhooks", "List webhooks.", options="limit=50 cursor",
    columns="id url events enabled pauseReason",
)  # fmt: skip
calling_verb(app, "show", "webhook", "Show a webhook.", "webhook")
calling_verb(
    app, "update", "change_webhook", "Change, pause or enable a webhook.", "webhook",
    options="new_url events enabled",
)  # fmt: skip
calling_verb(
    app, "rotate", "rotate_webhook_secret",
    "Replace the secret; for 24 hours the previous one signs as well.", "webhook",
)  # fmt: skip
calling_verb(app, "test", "test_webhook", "Send a test message.", "webhook")
calling_verb(
    app, "deliveries", "deliveries", "List what was sent, newest first.", "webhook",
    options="status limit=50 cursor",
    columns="id eventType status attempts nextAttemptAt error",
)  # fmt: skip
calling_verb(
    app, "redeliver", "redeliver", "Send a delivery again that has ended.", "webhook delivery"
)
calling_verb(app, "delete", "delete_webhook", "Delete a webhook.", "webhook")
