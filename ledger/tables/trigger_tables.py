"""The tables of triggers and of their runs.

Reference: features.md (Triggers, Schedules).
"""

from __future__ import annotations

from typing import Final

from ledger.tables.table import Table
from ledger.tables.writes import NOW, Guard, change, insert

# id: also the id of the template. manifest: the template, as the owner sent it. version: rises with
# every change by a caller. config: the settings of this kind of trigger. due_ms: the next due time
# by the cron expression. delay_ms: how long after the due time the run starts. taken_ms: the newest
# due time that was taken. runs: the number of started runs; refusals: the number of failed runs
# since the last successful one. day_ms, day_micro: a UTC day, and the sum of the holds of its runs.
# The runs have the credential of the trigger's last change: signed_key (the key with which the
# owner's DID signed) or key_id (an API key). expires_ms: when that credential ends. token_hash:
# SHA-256 of a hook's token. secret: the token and, if is_signed, a space and the signing secret,
# sealed together. audit_id: the audit entry of its creation or last resumption.
TRIGGER: Final = Table.of(
    "trigger",
    "id uuid PRIMARY KEY",
    "kind text NOT NULL CHECK (kind IN ('scheduled', 'webhook', 'event'))",
    "name text NOT NULL",
    "owner_did text NOT NULL",
    "version integer NOT NULL CHECK (version > 0)",
    "manifest text NOT NULL",
    "config json NOT NULL",
    "max_runs bigint CHECK (max_runs > 0)",
    "daily_budget_micro bigint CHECK (daily_budget_micro > 0)",
    "status text NOT NULL CHECK (status IN ('active', 'paused', 'ended'))",
    "reason text",
    "due_ms bigint",
    "delay_ms bigint NOT NULL",
    "taken_ms bigint",
    "runs bigint NOT NULL CHECK (runs <= max_runs)",
    "refusals integer NOT NULL",
    "day_ms bigint NOT NULL",
    "day_micro bigint NOT NULL",
    "token_hash bytea UNIQUE",
    "secret bytea",
    "is_signed boolean",
    "signed_key text",
    "key_id text CHECK (key_id IS NULL OR signed_key IS NULL)",
    "expires_ms bigint",
    "audit_id bigint NOT NULL",
    "created_ms bigint NOT NULL",
    "updated_ms bigint NOT NULL",
    "CHECK (due_ms IS NULL OR status = 'active')",
    "CHECK ((reason IS NULL) = (status = 'active'))",
    storage="fillfactor = 70",
)
# The result of one cause of a run. key: identifies the cause by its due time, delivery id,
# idempotency key or audit entry id. reason, detail: why the run was refused or skipped.
# missed_until_ms: the last of the missed due times; the first is due_ms. depth: how many runs of
# event triggers led to this run. audit_id: the audit entry of the result.
TRIGGER_RUN: Final = Table.of(
    "trigger_run",
    "trigger_id uuid NOT NULL",
    "key text NOT NULL",
    "version integer NOT NULL",
    "due_ms bigint",
    "status text NOT NULL CHECK (status IN ('started', 'failed', 'skipped'))",
    "reason text CHECK ((reason IS NULL) = (status = 'started'))",
    "detail text",
    "missed_until_ms bigint",
    "workflow_id uuid CHECK ((workflow_id IS NULL) = (status <> 'started'))",
    "depth smallint NOT NULL DEFAULT 0",
    "audit_id bigint NOT NULL",
    "created_ms bigint NOT NULL",
    "PRIMARY KEY (trigger_id, key)",
)

TRIGGERS: Final = insert(TRIGGER, fixed={"created_ms": NOW, "updated_ms": NOW})
# In a change that no caller makes these columns are NULL, and the stored values stay.
_KEPT_UNLESS_GIVEN: Final = ("name", "manifest", "config", "delay_ms", "updated_ms")
_NOT_STATE: Final = ("token_hash", "secret", "is_signed", "created_ms", *_KEPT_UNLESS_GIVEN)
# The columns that the writer caches: the fields of `KnownTrigger`.
TRIGGER_STATE: Final = tuple(
    column.name for column in TRIGGER.columns if column.name not in _NOT_STATE
)
TRIGGER_FIXED: Final = ("owner_did", "kind")
TRIGGER_CHANGES: Final = change(
    TRIGGER,
    [*(one for one in TRIGGER_STATE[1:] if one not in TRIGGER_FIXED), *_KEPT_UNLESS_GIVEN],
    where="o.status <> 'ended'",
    computed={column: f"coalesce(r.{column}, o.{column})" for column in _KEPT_UNLESS_GIVEN},
    guard=Guard("CB003", "a trigger that has ended would change"),
)
TRIGGER_RUNS: Final = insert(TRIGGER_RUN, fixed={"created_ms": NOW})
